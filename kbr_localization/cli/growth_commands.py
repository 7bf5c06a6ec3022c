"""`kbr map grown`: what a node has added to a map."""

from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import Json, MapFile
from kbr_localization.cli.saving import with_statistics_of_all
from kbr_localization.errors import KbrError, MapError
import typer


def grown(
    map_file: MapFile,
    *,
    merge: Annotated[
        bool, typer.Option('--merge', help='Take the added images into the map for good.')
    ] = False,
    drop: Annotated[
        bool, typer.Option('--drop', help='Delete the file with the added images.')
    ] = False,
    added: Annotated[
        Optional[Path],
        typer.Option(help='The file with them, as out of grow_into; by default MAP_grown.h5.'),
    ] = None,
    json: Json = False,
) -> None:
    """
    Say which images a node has added to a map; merge or drop them.

    They are in a file beside the map, which stays as it is until they are merged.
    """
    from kbr_localization.localization.map.grow import grown_path, GrownFile

    if merge and drop:
        raise KbrError('--merge and --drop: expected one of them')
    path = added or grown_path(map_file)
    _refuse_the_map(map_file, path)
    if not path.is_file():
        _refuse_no_map(map_file)
        raise KbrError(f'{path}: no such file: nothing was added to {map_file}; see --added')
    if not (merge or drop):
        _say(map_file, path, json)
        return
    # a node that adds to it would write it again
    with GrownFile(path).claimed():
        (_merge if merge else _drop)(map_file, path)


def _refuse_the_map(map_file: Path, path: Path) -> None:
    # also by another name: merging and dropping delete the file
    if path.exists() and map_file.exists() and path.samefile(map_file):
        raise KbrError(f'{path}: is the map itself: expected the file with the added images')


def _refuse_no_map(map_file: Path) -> None:
    from kbr_localization.localization.map.file import opened

    with opened(map_file):
        pass


def _say(map_file: Path, path: Path, json: bool) -> None:
    base, whole = _read(map_file, path)
    facts = {'file': str(path), 'added': len(whole) - len(base), 'images': len(whole)}
    if json:
        console.print_json(facts)
    else:
        console.print_table(str(map_file), facts)


def _merge(map_file: Path, path: Path) -> None:
    base, whole = _read(map_file, path)
    with_statistics_of_all(whole).save(map_file)
    path.unlink()
    added = len(whole) - len(base)
    console.note(f'{map_file}: {len(whole)} images, {added} of them added')


def _drop(map_file: Path, path: Path) -> None:
    _refuse_no_map(map_file)
    _refuse_foreign(map_file, path)
    path.unlink()
    console.note(f'{path}: deleted; {map_file} stays as it is')


def _refuse_foreign(map_file: Path, path: Path) -> None:
    """Raise KbrError for a file that has something else than images added to this map."""
    from kbr_localization.localization.map.grow import grown_path, is_grown_from
    from kbr_localization.localization.map.kernel_map import KernelMap

    base, why = KernelMap.load(map_file), f'it did not grow from {map_file}'
    try:
        if is_grown_from(KernelMap.load(path), base):
            return
    except MapError:
        # of that name it was a node's, and there is nothing left to lose
        if path == grown_path(map_file):
            return
        why = 'it is no map that can be read'
    raise KbrError(
        f'{path}: expected the file with the images added to {map_file}, but {why}: it stays; '
        'delete it yourself if nobody needs it'
    )


def _read(map_file: Path, path: Path) -> tuple[Any, Any]:
    from kbr_localization.localization.map.grow import grown_form
    from kbr_localization.localization.map.kernel_map import KernelMap

    base = KernelMap.load(map_file)
    return base, grown_form(base, KernelMap.load(path))
