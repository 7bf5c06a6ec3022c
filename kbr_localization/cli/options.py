"""Arguments that several commands share, with one wording."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Init(str, Enum):
    """Where a localizer starts from."""

    GLOBAL = 'global'
    REFERENCE = 'reference'


RUN_HELP = 'A COLD run folder or a rosbag2.'

Run = Annotated[Path, typer.Argument(metavar='RUN', help=RUN_HELP, show_default=False)]
Runs = Annotated[list[Path], typer.Argument(metavar='RUN...', help=RUN_HELP, show_default=False)]
MapFile = Annotated[
    Path, typer.Argument(metavar='MAP', help='A map made by `kbr map build`.', show_default=False)
]
Seed = Annotated[int, typer.Option(min=0, help='Seed of everything random.')]
Json = Annotated[bool, typer.Option('--json', help='Print JSON and nothing else on stdout.')]
Settings = Annotated[
    list[str] | None,
    typer.Option('--set', metavar='NAME=VALUE', help='Set a parameter; see `kbr parameters`.'),
]
Method = Annotated[str, typer.Option(help='kbr, or a baseline: see `kbr methods`.')]
Start = Annotated[Init, typer.Option(help='Start from nothing or from the truth.')]
Cameras = Annotated[
    str | None,
    typer.Option(
        metavar='NAME,NAME',
        help='Cameras to use, by folders of a COLD run or topics of a bag, if there are several.',
        show_default=False,
    ),
]
OdometryTopic = Annotated[
    str | None,
    typer.Option(
        metavar='TOPIC',
        help='Odometry of a bag, if there are several.',
        show_default=False,
    ),
]
ReferenceTopic = Annotated[
    str | None,
    typer.Option(
        metavar='TOPIC',
        help='Known poses of a bag, if there are several or they are in the odometry frame.',
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help='Parallel processes.  [default: one per core]', show_default=False),
]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar='ADDRESS', help='Work on this Dask cluster instead: tcp://host:8786.'),
]
