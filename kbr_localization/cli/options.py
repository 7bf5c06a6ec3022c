"""
Options shared by commands: how runs are opened, and parameters as `--set NAME=VALUE`.

typer 0.9 (Ubuntu 24.04) supports neither `X | None` nor annotations that are strings. So commands
use `Optional[X]`, and their modules do not import `annotations` from `__future__`.
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
from kbr_localization.configuration import Config, fields_of, from_mapping, unknown_parameter
from kbr_localization.errors import ConfigurationError, KbrError
import typer

Init = Enum('Init', {'GLOBAL': 'global', 'REFERENCE': 'reference'}, type=str)
PoseSource = Enum('PoseSource', {'KNOWN': 'known', 'ODOMETRY': 'odometry'}, type=str)
PoseFrame = Enum('PoseFrame', {'CAMERA': 'camera', 'BASE': 'base'}, type=str)
RunFormat = Enum('RunFormat', {'BAG': 'bag', 'COLD': 'cold'}, type=str)
Storage = Enum('Storage', {'MCAP': 'mcap', 'SQLITE3': 'sqlite3'}, type=str)

RUN_HELP = 'A rosbag2, an mcap file, a ROS 1 bag, a COLD run, or public data: docs/datasets.md.'
Run = Annotated[Path, typer.Argument(metavar='RUN', help=RUN_HELP)]
Runs = Annotated[list[Path], typer.Argument(metavar='RUN...', help=RUN_HELP)]
MapFile = Annotated[Path, typer.Argument(metavar='MAP', help='A map from `kbr map build`.')]
Out = Annotated[Path, typer.Option(help='File or folder to write.')]
PosesFrom = Annotated[PoseSource, typer.Option(help='Where poses come from.')]
PosesOf = Annotated[PoseFrame, typer.Option(help='Point with these poses, if of odometry.')]
MaxImages = Annotated[Optional[int], typer.Option(min=1, help='Maximum number of images.')]
Seed = Annotated[int, typer.Option(min=0, help='Random seed.')]
Json = Annotated[bool, typer.Option('--json', help='Print JSON and nothing else on stdout.')]
Settings = Annotated[
    Optional[list[str]], typer.Option('--set', help='NAME=VALUE: see `kbr parameters`.')
]
Method = Annotated[str, typer.Option(help='kbr, or a baseline: see `kbr methods`.')]
Methods = Annotated[str, typer.Option(help='all, or names from `kbr methods`, as kbr,nearest.')]
Start = Annotated[Init, typer.Option(help='Start without a pose, or at the reference.')]
Trials = Annotated[int, typer.Option(min=1, max=10_000, help='Trials per map size or method.')]
Sizes = Annotated[Optional[str], typer.Option(help='Images in the maps, as 50,100,200.')]
Jobs = Annotated[Optional[int], typer.Option(min=1, max=256, help='Processes (one per core).')]
Scheduler = Annotated[Optional[str], typer.Option(help='Dask cluster, as tcp://host:8786.')]


def split_names(option: str, text: str) -> list[str]:
    """Return the names in `a,b`; raises KbrError for an empty name."""
    names = [name.strip() for name in text.split(',')]
    if not all(names):
        raise KbrError(f'{option} {text!r}: expected comma-separated names, as front,rear')
    return names


def parse_sizes(text: str | None) -> tuple[int, ...]:
    """Return the sizes in `50,100`, none for None; raises KbrError for anything else."""
    try:
        return tuple(sorted({int(part) for part in text.split(',')})) if text else ()
    except ValueError as error:
        raise KbrError(f'--sizes {text!r:.80}: expected whole numbers like 50,100,200') from error


@dataclasses.dataclass(frozen=True)
class RunReader:
    """Opens runs; each field is an option of the commands decorated by `reads_runs`."""

    cameras: Annotated[
        Optional[str],
        typer.Option('--cameras', '--image-topic', help='Image folders or topics, as front,rear.'),
    ] = None
    odometry_topic: Annotated[Optional[str], typer.Option(help='Odometry in a bag.')] = None
    reference_topic: Annotated[Optional[str], typer.Option(help='Known poses in a bag.')] = None
    spacing: Annotated[Optional[float], typer.Option(help='Metres between images.')] = None

    def open_run(self, run: Path, cameras: Sequence[str] = (), guess: bool = False) -> Any:
        """Open a run, with `cameras` unless the option is given, and print its notes."""
        from kbr_localization.datasets import open_dataset  # noqa: PLC0415  (slow to import)

        given = dataclasses.asdict(self)
        if named := given.pop('cameras'):
            cameras = split_names('--cameras', named)
        dataset = open_dataset(run, cameras, guess=guess, **given)
        notes = [', '.join(dataset.sources), *dataset.notes]
        if guess and dataset.others:
            notes.append(f'not used: {", ".join(dataset.others)}')
        console.note(*(f'{run}: {note}' for note in notes if note))
        return dataset

    def open_run_for(self, kernel_map: Any, map_file: Path, run: Path) -> Any:
        """Open a run with the cameras of a map; warn if its known poses are in another frame."""
        from kbr_localization.evaluation.metrics import frame_note  # noqa: PLC0415

        dataset, wanted = self.open_run(run, kernel_map.cameras), kernel_map.cameras
        if len(dataset.cameras) != len(wanted):
            given = ','.join(wanted) or f'NAME, one of {", ".join(dataset.cameras)}'
            raise KbrError(
                f'{map_file} has {max(len(wanted), 1)} camera(s), {run} was opened with '
                f'{max(len(dataset.cameras), 1)}: give --cameras {given}'
            )
        if note := frame_note(kernel_map, dataset):
            console.note(f'warning: {map_file}: {note}')
        return dataset


def reads_runs(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `reader` of a command by options, one for each field of it."""
    added = inspect.signature(RunReader).parameters

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> None:
        reader = RunReader(**{name: given.pop(name) for name in added})
        command(*args, **given, reader=reader)

    own = dict(inspect.signature(command).parameters)
    del own['reader']
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in added.values()]
    parameters = [*own.values(), *options]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _parse(settings: Sequence[str] | None, *configs: type[Config]) -> list[dict[str, Any]]:
    """Return the values of texts NAME=VALUE for each configuration, by name, unchecked."""
    values: list[dict[str, Any]] = [{} for _ in configs]
    known: dict[str, tuple[dict[str, Any], str, Any]] = {
        config.prefix + name: (found, name, type(field.default))
        for config, found in zip(configs, values, strict=True)
        for name, field in fields_of(config).items()
    }
    for setting in settings or ():
        full_name, _, text = (part.strip() for part in setting.partition('='))
        if not (full_name and text):
            raise ConfigurationError(f'--set {setting}: expected NAME=VALUE')
        if full_name not in known:
            raise ConfigurationError(unknown_parameter(full_name, list(known)))
        found, name, kind = known[full_name]
        found[name] = text
        if kind is bool:
            found[name] = {'true': True, 'false': False}.get(text.lower(), text)
        elif kind in (int, float):
            with contextlib.suppress(ValueError):
                found[name] = kind(text)
    return values


def apply_settings(kernel_map: Any, method: str, settings: Sequence[str] | None) -> Any:
    """Return a map with parameters of a method from `--set`; raises ConfigurationError."""
    from kbr_localization.localization.methods import registry  # noqa: PLC0415
    from kbr_localization.vision import VisionConfig  # noqa: PLC0415

    for name in (setting.partition('=')[0].strip() for setting in settings or ()):
        if name.startswith(VisionConfig.prefix):
            raise ConfigurationError(
                f'parameter {name!r} is fixed in the map, whose images were described with it: '
                'set it when the map is built'
            )
    (values,) = _parse(settings, registry.method_named(method).config)
    return registry.with_values(method, kernel_map, values)


def parse_settings(settings: Sequence[str] | None) -> tuple[Any, dict[str, Any]]:
    """Return the vision configuration and the values of the filter that are set."""
    from kbr_localization.localization.config import KbrConfig  # noqa: PLC0415
    from kbr_localization.vision.config import LEARNED, VisionConfig  # noqa: PLC0415

    values, vision_values = _parse(settings, KbrConfig, VisionConfig)
    from_mapping(KbrConfig, values)
    vision = from_mapping(VisionConfig, vision_values)
    for name in vision_values:
        if name.startswith('network_') and vision.descriptor not in ('onnx', LEARNED):
            raise ConfigurationError(
                f'parameter {vision.prefix}{name}: has no effect without '
                f'{vision.prefix}descriptor=onnx or {LEARNED}'
            )
    return vision, values
