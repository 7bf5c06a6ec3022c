"""Folders of runs, which appear only when they are complete, and the notes in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import logging
from pathlib import Path
import shutil

from kbr_localization.datasets.frame import Skipped
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text, temporary_path

LOG = logging.getLogger(__name__)

NOTES = 'kbr_notes.txt'


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """Yield a folder that becomes `path` if the block ends without error; raises DatasetError."""
    target = Path(path)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DatasetError(f'{target} exists already: choose another name or delete it first')
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = temporary_path(target)
        parent.mkdir(0o700)
        try:
            folder = parent / target.name
            folder.mkdir()
            yield folder
            folder.replace(target)
        finally:
            shutil.rmtree(parent, ignore_errors=True)
    except (OSError, DatasetError) as error:
        # the message of a recording or an inner folder would name the hidden folder
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise DatasetError(f'cannot write {target}: {cause.strerror or cause}') from cause


def count_broken_image(skipped: Skipped, name: str, error: DatasetError) -> None:
    """Count an image that cannot be copied; log the first as a warning."""
    LOG.log(logging.DEBUG if skipped else logging.WARNING, '%s left out: %s', name, error)
    skipped.add('broken image')


def write_notes(folder: Path, notes: Sequence[str]) -> None:
    if notes:
        (folder / NOTES).write_text(''.join(f'{note}\n' for note in notes), encoding='utf-8')


def read_notes(folder: Path) -> tuple[str, ...]:
    """Return the notes in a folder, none if their file cannot be read."""
    try:
        text = read_text(folder / NOTES, errors='replace')
    except OSError:
        return ()
    return tuple(line.strip() for line in text.splitlines() if line.strip())
