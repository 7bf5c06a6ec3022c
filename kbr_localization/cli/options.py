"""
Arguments that several commands share, with one wording, and options of several values.

typer 0.9, as of Ubuntu 24.04, understands neither `X | None` nor annotations that are strings: the
commands have `Optional[X]`, and their files no `from __future__ import annotations`.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer


class Init(str, Enum):
    """Where a localizer starts from."""

    GLOBAL = 'global'
    REFERENCE = 'reference'


class Poses(str, Enum):
    """Where the poses of a map's images come from."""

    KNOWN = 'known'
    ODOMETRY = 'odometry'


class PoseFrame(str, Enum):
    """Whose poses a map of odometry and images has."""

    CAMERA = 'camera'
    BASE = 'base'


PosesOf = Annotated[
    PoseFrame,
    typer.Option(help='With --poses odometry: poses of the camera, or of base_link.'),
]


RUN_HELP = 'A COLD run folder, a rosbag2, or a public dataset: see docs/datasets.md.'

Run = Annotated[Path, typer.Argument(metavar='RUN', help=RUN_HELP, show_default=False)]
Runs = Annotated[list[Path], typer.Argument(metavar='RUN...', help=RUN_HELP, show_default=False)]
MapFile = Annotated[
    Path, typer.Argument(metavar='MAP', help='A map made by `kbr map build`.', show_default=False)
]
Seed = Annotated[int, typer.Option(min=0, help='Seed of everything random.')]
MOST_TRIALS = 10_000
"""A slip of the finger would fill the memory with what is to be tried."""
Json = Annotated[bool, typer.Option('--json', help='Print JSON and nothing else on stdout.')]
Settings = Annotated[
    Optional[list[str]],
    typer.Option('--set', metavar='NAME=VALUE', help='Set a parameter; see `kbr parameters`.'),
]
Method = Annotated[str, typer.Option(help='kbr, or a baseline: see `kbr methods`.')]
Start = Annotated[Init, typer.Option(help='Start from nothing or from the truth.')]
Cameras = Annotated[
    Optional[str],
    typer.Option(
        metavar='NAME,NAME',
        help='Cameras to use, by folders of a COLD run or topics of a bag, if there are several.',
        show_default=False,
    ),
]
OdometryTopic = Annotated[
    Optional[str],
    typer.Option(
        metavar='TOPIC',
        help='Odometry of a bag, if there are several.',
        show_default=False,
    ),
]
ReferenceTopic = Annotated[
    Optional[str],
    typer.Option(
        metavar='TOPIC',
        help='Known poses of a bag, if there are several or they are in the odometry frame.',
        show_default=False,
    ),
]
Spacing = Annotated[
    Optional[float],
    typer.Option(
        metavar='METRES',
        help='Distance between the images of a folder that has nothing else.',
        show_default=False,
    ),
]
Jobs = Annotated[
    Optional[int],
    typer.Option(min=1, help='Parallel processes.', show_default='one per core'),
]
Scheduler = Annotated[
    Optional[str],
    typer.Option(metavar='ADDRESS', help='Work on this Dask cluster instead: tcp://host:8786.'),
]


def repeat_options(arguments: Sequence[str], names: Iterable[str]) -> list[str]:
    """Repeat each of the named options before every value that follows it."""
    several = set(names)
    current, first = '', False
    repeated = []
    for argument in arguments:
        if argument.startswith('-') and argument != '-':
            current, first = (argument, True) if argument in several else ('', False)
        elif current and not first:
            repeated.append(current)
        else:
            first = False
        repeated.append(argument)
    return repeated
