"""The notes of a run in a file beside it, so that they survive its conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

NOTES = 'kbr_notes.txt'
WITHOUT_POSES = 'its poses are unknown: build a map of it by --poses odometry'
"""Note of a run whose images have poses by the odometry in their names, for want of others."""


def write_notes(folder: Path, notes: Sequence[str]) -> None:
    """Write notes, a line each, if there are any; raises OSError."""
    if notes:
        (folder / NOTES).write_text(''.join(f'{note}\n' for note in notes), encoding='utf-8')


def read_notes(folder: Path) -> tuple[str, ...]:
    """Return the notes in a folder, none where there is no file that can be read."""
    try:
        text = (folder / NOTES).read_text(encoding='utf-8', errors='replace')
    except OSError:
        return ()
    return tuple(line.strip() for line in text.splitlines() if line.strip())
