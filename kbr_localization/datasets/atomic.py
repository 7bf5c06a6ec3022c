"""Folders that appear as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import shutil
import tempfile

from kbr_localization.errors import DatasetError


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """
    Give a folder of the name of `path` that moves to `path` when the block ends without an error.

    After an error nothing remains. Raises DatasetError when `path` exists already (an empty
    folder is taken) or cannot be written.
    """
    target = Path(path)
    _check_free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f'.{target.name}.', dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        folder = workshop / target.name
        folder.mkdir()
        yield folder
        folder.replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _check_free(target: Path) -> None:
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise _unwritable(target, error) from error
    if taken:
        raise DatasetError(f'{target} exists already: choose another name or delete it first')


def _unwritable(target: Path, error: OSError) -> DatasetError:
    return DatasetError(f'cannot write {target}: {error.strerror or error}')
