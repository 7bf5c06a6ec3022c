"""Trajectories as TUM files, with covariances, statuses and times in a CSV file."""

import csv
import dataclasses
import io
import logging
from pathlib import Path

from kbr_localization.datasets.frame import Skipped
from kbr_localization.datasets.tables import format_pose, read_track
from kbr_localization.errors import EvaluationError
from kbr_localization.files import new_file, read_text, write_text
from kbr_localization.trajectory import Trajectory
import numpy as np

logger = logging.getLogger(__name__)

_ENTRIES = {  # CSV columns of the covariance
    f'covariance_{"xyh"[row]}{"xyh"[column]}': (row, column)
    for row, column in zip(*np.triu_indices(3), strict=True)
}
COLUMNS = ('stamp_ns', *_ENTRIES, 'confidence', 'status', 'updated', 'seconds')


def write_tum(path: str | Path, trajectory: Trajectory) -> None:
    """Write stamps and poses; z is zero."""
    write_text(path, _tum_text(trajectory))


def _tum_text(trajectory: Trajectory) -> str:
    lines = map(format_pose, trajectory.stamps_ns.tolist(), trajectory.poses)
    return ''.join(['# seconds x y z qx qy qz qw\n', *lines])


def read_tum(path: str | Path) -> Trajectory:
    """Read x, y and heading from a TUM file; raises DatasetError if no line can be used."""
    skipped = Skipped()
    track = read_track(Path(path), skipped)
    return Trajectory(track.stamps_ns, track.poses, skipped=skipped)


def details_path(trajectory_path: str | Path) -> Path:
    """Return the path of the details of a trajectory: run.csv for run.tum, run.1.csv for run.1."""
    path = Path(trajectory_path)
    table = path.suffix in ('.tum', '.txt', '.csv')
    return path.with_suffix('.csv') if table else Path(f'{path}.csv')


def _holds_details(path: Path) -> bool:
    start = ','.join(COLUMNS[:2]).encode()
    with path.open('rb') as file:
        return file.read(len(start)) == start


def check_details(path: Path) -> None:
    """Raise EvaluationError if the file exists and holds anything but details."""
    if path.is_file() and path.stat().st_size and not _holds_details(path):
        raise EvaluationError(
            f'{path} would be overwritten with the details of the trajectory, but holds '
            'something else: move it, or choose another --out'
        )


def read_detailed(path: Path) -> Trajectory:
    """Read a TUM file and its details, if any; raises EvaluationError for unsuited details."""
    trajectory, details = read_tum(path), details_path(path)
    # the trajectory may itself be a .csv file
    if details == path or not details.is_file():
        return trajectory
    if not _holds_details(details):
        logger.warning('%s: not from `kbr localize`: the trajectory has no covariances', details)
        return trajectory
    try:
        lines = csv.DictReader(io.StringIO(read_text(details), newline=''))
        by_stamp = {int(line['stamp_ns']): line for line in lines}
        rows = [by_stamp[stamp] for stamp in trajectory.stamps_ns.tolist()]
        columns = {
            name: np.array([float(row[name]) for row in rows])
            for name in (*_ENTRIES, 'confidence', 'updated', 'seconds')
        }
        statuses = tuple(row['status'] for row in rows)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise EvaluationError(
            f'{details}: expected the columns {", ".join(COLUMNS)} and the stamps of the '
            f'trajectory ({error}); localize again or remove the file'
        ) from error
    covariances = np.empty((len(rows), 3, 3))
    for name, (row, column) in _ENTRIES.items():
        covariances[:, row, column] = covariances[:, column, row] = columns[name]
    return dataclasses.replace(
        trajectory,
        covariances=covariances,
        confidences=columns['confidence'],
        statuses=statuses,
        updated=columns['updated'] == 1,
        seconds=columns['seconds'],
    )


def write_detailed(path: str | Path, trajectory: Trajectory) -> None:
    """Write a trajectory of `localize` and its details; an error leaves both files unchanged."""
    t = trajectory
    with new_file(path) as tum, new_file(details_path(path)) as details:
        tum.write_text(_tum_text(t), encoding='utf-8')
        with details.open('w', newline='', encoding='utf-8') as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            for n, stamp in enumerate(t.stamps_ns.tolist()):
                covariance = [f'{t.covariances[n][entry]:.9g}' for entry in _ENTRIES.values()]
                status = [f'{t.confidences[n]:.6g}', t.statuses[n], int(t.updated[n])]
                rows.writerow([stamp, *covariance, *status, f'{t.seconds[n]:.6f}'])
