"""Folders that appear as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import shutil

from kbr_localization.errors import DatasetError
from kbr_localization.files import temporary_of


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """
    Give a folder of the name of `path` that moves to `path` when the block ends without an error.

    After an error nothing remains, and what killed processes left is removed. Raises
    DatasetError when `path` exists already (an empty folder is taken) or cannot be written.
    """
    target = Path(path)
    _check_free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_of(target, lambda part: part.mkdir(0o700)) as workshop:
            try:
                folder = workshop / target.name
                folder.mkdir()
                yield folder
                folder.replace(target)
            finally:
                shutil.rmtree(workshop, ignore_errors=True)
    except OSError as error:
        raise _unwritable(target, error) from error


def _check_free(target: Path) -> None:
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise _unwritable(target, error) from error
    if taken:
        raise DatasetError(f'{target} exists already: choose another name or delete it first')


def _unwritable(target: Path, error: OSError) -> DatasetError:
    return DatasetError(f'cannot write {target}: {error.strerror or error}')
