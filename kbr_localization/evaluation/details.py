"""
What a TUM file has no room for: covariance, confidence, status and time spent, frame by frame.

`kbr localize --out run.tum` writes it beside the trajectory as `run.csv`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation.tum import tum_text
from kbr_localization.files import new_file, read_text
from kbr_localization.trajectory import Trajectory
import numpy as np

UPPER_TRIANGLE = tuple(zip(*np.triu_indices(3), strict=True))
COLUMNS = (
    'stamp_ns',
    *(f'covariance_{"xyh"[row]}{"xyh"[column]}' for row, column in UPPER_TRIANGLE),
    'confidence',
    'status',
    'updated',
    'seconds',
)
_SUFFIXES = ('.tum', '.txt', '.csv')


def details_path(trajectory_path: str | Path) -> Path:
    """
    Where the details of a trajectory file are kept: beside it, with the suffix .csv.

    It takes the place of another suffix of a table; run.1 and run.2 have each their own.
    """
    path = Path(trajectory_path)
    return path.with_suffix('.csv') if path.suffix in _SUFFIXES else Path(f'{path}.csv')


def holds_details(path: Path) -> bool:
    """Whether a file begins as `write_detailed` writes one; raises OSError."""
    start = ','.join(COLUMNS[:2]).encode()
    with path.open('rb') as file:
        return file.read(len(start)) == start


def check_details(path: Path) -> None:
    """Raise EvaluationError for a file that holds something else and would be overwritten."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    if not holds_details(path):
        raise EvaluationError(
            f'{path} would be overwritten with the details of the trajectory, but holds '
            'something else: move it, or choose another --out'
        )


def write_detailed(path: str | Path, trajectory: Trajectory) -> None:
    """
    Write a TUM file and, beside it, the details, a row for each pose.

    After an error both are what they were. Refuses a trajectory that carries no details.
    """
    with new_file(path) as tum, new_file(details_path(path)) as details:
        tum.write_text(tum_text(trajectory), encoding='utf-8')
        _write_rows(details, trajectory)


def _write_rows(path: Path, trajectory: Trajectory) -> None:
    columns = (trajectory.covariances, trajectory.confidences, trajectory.updated)
    if any(column is None for column in columns) or trajectory.seconds is None:
        raise EvaluationError('trajectory without details: expected one made by `localize`')
    with path.open('w', newline='', encoding='utf-8') as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        rows.writerows(_row(trajectory, index) for index in range(len(trajectory)))


def with_details(trajectory: Trajectory, path: str | Path) -> Trajectory:
    """
    Add the details that belong to a trajectory read from a TUM file.

    Raises EvaluationError when the file is not one of details or belongs to other stamps.
    """
    try:
        return _merge(trajectory, list(csv.DictReader(io.StringIO(read_text(path), newline=''))))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise EvaluationError(
            f'{path}: expected the columns {", ".join(COLUMNS)} and the stamps of the trajectory '
            f'beside it ({error}); localize again or remove the file'
        ) from error


def _row(trajectory: Trajectory, index: int) -> list[object]:
    t = trajectory
    assert t.covariances is not None and t.confidences is not None
    assert t.updated is not None and t.seconds is not None
    return [
        int(t.stamps_ns[index]),
        *(f'{t.covariances[index][entry]:.9g}' for entry in UPPER_TRIANGLE),
        f'{t.confidences[index]:.6g}',
        t.statuses[index],
        int(t.updated[index]),
        f'{t.seconds[index]:.6f}',
    ]


def _merge(trajectory: Trajectory, rows: list[dict[str, str]]) -> Trajectory:
    stamps = np.array([int(row['stamp_ns']) for row in rows], dtype=np.int64)
    if not np.array_equal(stamps, trajectory.stamps_ns):
        raise ValueError(f'{stamps.size} stamps differ from the {len(trajectory)} of the poses')
    covariances = np.empty((stamps.size, 3, 3))
    for name, (row, column) in zip(COLUMNS[1:7], UPPER_TRIANGLE, strict=True):
        values = [float(line[name]) for line in rows]
        covariances[:, row, column] = covariances[:, column, row] = values
    return dataclasses.replace(
        trajectory,
        covariances=covariances,
        confidences=np.array([float(row['confidence']) for row in rows]),
        statuses=tuple(row['status'] for row in rows),
        updated=np.array([row['updated'] == '1' for row in rows]),
        seconds=np.array([float(row['seconds']) for row in rows]),
    )
