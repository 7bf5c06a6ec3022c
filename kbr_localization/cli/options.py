"""
Options that several commands share: how runs are opened, and parameters as `--set NAME=VALUE`.

typer 0.9, as of Ubuntu 24.04, understands neither `X | None` nor annotations that are strings: the
commands have `Optional[X]`, and their files no `from __future__ import annotations`.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
from enum import Enum
import functools
import inspect
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.configuration import from_mapping, to_mapping, unknown_parameter
from kbr_localization.errors import ConfigurationError, KbrError
import typer


class Init(str, Enum):
    """Where a localizer starts from."""

    GLOBAL = 'global'
    REFERENCE = 'reference'


class Poses(str, Enum):
    """Where the poses of a map's images come from."""

    KNOWN = 'known'
    ODOMETRY = 'odometry'


RUN_HELP = 'A COLD run folder, a rosbag2, or a public dataset: see docs/datasets.md.'
Run = Annotated[Path, typer.Argument(metavar='RUN', help=RUN_HELP)]
Runs = Annotated[list[Path], typer.Argument(metavar='RUN...', help=RUN_HELP)]
MapFile = Annotated[Path, typer.Argument(metavar='MAP', help='A map of `kbr map build`.')]
Out = Annotated[Path, typer.Option(help='What to write.')]
MaxImages = Annotated[Optional[int], typer.Option(min=1, help='Keep so many images at most.')]
Seed = Annotated[int, typer.Option(min=0, help='Seed of everything random.')]
Json = Annotated[bool, typer.Option('--json', help='Print JSON and nothing else on stdout.')]
Settings = Annotated[
    Optional[list[str]], typer.Option('--set', help='NAME=VALUE: see `kbr parameters`.')
]
Method = Annotated[str, typer.Option(help='kbr, or a baseline: see `kbr methods`.')]
Methods = Annotated[str, typer.Option(help='all, or some of `kbr methods`, with commas between.')]
Start = Annotated[Init, typer.Option(help='Start from nothing or from the truth.')]
Trials = Annotated[int, typer.Option(min=1, max=10_000, help='Random maps, or candidates.')]
Sizes = Annotated[Optional[str], typer.Option(help='Images of the maps, as 50,100,200.')]
Jobs = Annotated[Optional[int], typer.Option(min=1, max=256, help='Processes: one per core.')]
Scheduler = Annotated[Optional[str], typer.Option(help='Use a Dask cluster: tcp://host:8786.')]


def split_names(option: str, text: str) -> list[str]:
    """Return the names of `a,b`; raises KbrError for an empty one."""
    names = [name.strip() for name in text.split(',')]
    if not all(names):
        raise KbrError(f'{option} {text!r}: expected names with commas between, as front,rear')
    return names


def sizes_of(text: str) -> tuple[int, ...]:
    """Sizes of `50,100`; raises KbrError for what is no list of whole numbers."""
    try:
        return tuple(sorted({int(part) for part in text.split(',')}))
    except ValueError as error:
        raise KbrError(f'--sizes {text!r:.80}: expected whole numbers like 50,100,200') from error


Cameras = Annotated[
    Optional[str],
    typer.Option('--cameras', '--image-topic', help='Folders or topics, as front,rear.'),
]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How runs are read: cameras and topics where there are several, image spacing in metres."""

    cameras: str | None = None
    odometry_topic: str | None = None
    reference_topic: str | None = None
    spacing: float | None = None

    def open(  # noqa: A003
        self, run: Path, cameras: Sequence[str] = (), guess: bool = False
    ) -> Any:
        """Open a run, by default with these `cameras`, and print its notes."""
        from kbr_localization.datasets import open_dataset  # noqa: PLC0415  (not for `--help`)

        dataset = open_dataset(
            run,
            split_names('--cameras', self.cameras) if self.cameras else cameras,
            odometry_topic=self.odometry_topic,
            reference_topic=self.reference_topic,
            spacing=self.spacing,
            guess=guess,
        )
        others = getattr(dataset, 'others', ()) if guess else ()
        for note in (
            ', '.join(dataset.sources),
            *dataset.notes,
            f'not used: {", ".join(others)}' if others else '',
        ):
            if note:
                console.note(f'{run}: {note}')
        return dataset

    def open_for(self, kernel_map: Any, map_file: Path, run: Path) -> Any:
        """
        Open a run with the cameras of a map; warn where it has known poses of another frame.

        Raises KbrError for a run of more or fewer cameras than the map has.
        """
        from kbr_localization.evaluation.metrics import frame_note  # noqa: PLC0415

        dataset, wanted = self.open(run, kernel_map.cameras), kernel_map.cameras
        if len(dataset.cameras) != len(wanted):
            given = ','.join(wanted) or f'NAME, one of {", ".join(dataset.cameras)}'
            raise KbrError(
                f'{map_file} is of {max(len(wanted), 1)} camera(s), {run} was opened with '
                f'{max(len(dataset.cameras), 1)}: give --cameras {given}'
            )
        if note := frame_note(kernel_map, dataset):
            console.note(f'warning: {map_file}: {note}')
        return dataset


def reads_runs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how runs are read, in place of its `reading`."""

    def options(
        *,
        cameras: Cameras = None,
        odometry_topic: Annotated[Optional[str], typer.Option(help='Odometry of a bag.')] = None,
        reference_topic: Annotated[Optional[str], typer.Option(help='Poses of a bag.')] = None,
        spacing: Annotated[Optional[float], typer.Option(help='Metres between images.')] = None,
    ) -> None: ...

    added = inspect.signature(options).parameters

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> None:
        reading = Reading(**{name: given.pop(name) for name in added})
        command(*args, **given, reading=reading)

    own = inspect.signature(command).parameters
    kept = [parameter for name, parameter in own.items() if name != 'reading']
    signature = inspect.Signature([*kept, *added.values()])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*kept, *added.values())}
    return wrapped


def _parsed(config: type[Any], settings: Sequence[str] | None, prefix: str = '') -> dict[str, Any]:
    """
    Values of the parameters of a configuration in texts NAME=VALUE, each of its own type.

    Only names that begin with `prefix`, which is taken off; raises ConfigurationError.
    """
    types, values = {f.name: type(f.default) for f in dataclasses.fields(config)}, {}
    for setting in settings or ():
        name, equals, text = setting.partition('=')
        if not (name and equals and text):
            raise ConfigurationError(f'--set {setting}: expected NAME=VALUE')
        name = name.strip()
        own_name = name.removeprefix(prefix)
        kind = types.get(own_name, str)
        value: Any = {'true': True, 'false': False}.get(text.lower(), text)
        if kind in (int, float) and value is text:
            with contextlib.suppress(ValueError):  # the configuration says what was expected
                value = kind(text)
        if name.startswith(prefix):
            values[own_name] = text if kind is str else value
    return values


def with_settings_of(kernel_map: Any, method: str, settings: Sequence[str] | None) -> Any:
    """Set parameters of a method on a map, by texts of `--set`; raises ConfigurationError."""
    from kbr_localization.localization.methods.registry import (  # noqa: PLC0415
        method_config,
        method_named,
        with_values,
    )
    from kbr_localization.vision.config import PREFIX  # noqa: PLC0415

    config = method_named(method).config
    given = _parsed(config, settings)
    for name in given:
        if name.startswith(PREFIX):
            raise ConfigurationError(
                f'parameter {name!r}: is fixed in the map, whose images were described with it: '
                'set it where a map is built'
            )
        if not dataclasses.fields(config):
            raise ConfigurationError(
                f'unknown parameter {name!r}: the method {method} has no parameters'
            )
    from_mapping(config, to_mapping(method_config(method, kernel_map)) | given)
    return with_values(method, kernel_map, given)


def configurations(settings: Sequence[str] | None) -> tuple[Any, dict[str, Any]]:
    """
    Vision configuration, and values of the filter, of texts of `--set`.

    Parameters of the filter that are not set are fitted to the map.
    """
    from kbr_localization.localization.config import KbrConfig  # noqa: PLC0415
    from kbr_localization.vision.config import LEARNED, PREFIX, VisionConfig  # noqa: PLC0415

    inside = _parsed(VisionConfig, settings, PREFIX)
    rest = {
        name: value
        for name, value in _parsed(KbrConfig, settings).items()
        if not name.startswith(PREFIX)
    }
    known, known_of_vision = (list(to_mapping(config)) for config in (KbrConfig(), VisionConfig()))
    for name in rest.keys() - set(known):
        also = [PREFIX + other for other in known_of_vision]
        raise ConfigurationError(unknown_parameter(name, known, also))
    from_mapping(KbrConfig, rest)
    vision = from_mapping(VisionConfig, inside, PREFIX)
    for part, other, wanted in (
        ('network_', 'descriptor', ('onnx', LEARNED)),
        ('mirror_', 'projection', ('omnidirectional',)),
    ):
        useless = [name for name in inside if name.startswith(part)]
        if useless and getattr(vision, other) not in wanted:
            raise ConfigurationError(
                f'parameter {PREFIX}{useless[0]}: has no effect with {PREFIX}{other}='
                f'{getattr(vision, other)}: set {PREFIX}{other}={" or ".join(wanted)} beside it'
            )
    return vision, rest
