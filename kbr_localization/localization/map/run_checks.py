"""Checks of the runs of a map: odometry, jumps of the reference poses, and their frames."""

from collections.abc import Iterator
import itertools

from kbr_localization import se2
from kbr_localization.datasets.tracks import LONG_PAUSE
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision.preparation import select_evenly
from kbr_localization.vision.turning import robust_line
import numpy as np

_WINDOW = 3.0  # metres plus radians of motion over which odometry and reference are compared


def run_fault(name: str, stamps_ns: StampArray, odometry: FloatArray, poses: FloatArray) -> str:
    """Describe a fault of the odometry or the reference poses (n, 3) of a run; '' if none."""
    away = float(np.hypot(*(poses[:, :2] - poses[:1, :2]).T).max(initial=0.0))
    way = float(se2.travelled(odometry).max(initial=0.0))
    if away > 1.0 and way < away / 3.0:  # the calibration corrects smaller errors
        return (
            f'the poses of {name} go {away:.1f} m away from the first one, but its odometry has '
            f'travelled {way:.1f} m: if it is not that of the wheels, or not in metres, a robot '
            'with this odometry will not be localized'
        )
    if fault := odometry_fault(odometry, poses):
        return f'the odometry of {name} {fault}'
    moved, driven = (se2.steps(track) for track in (poses, odometry))
    errors = np.hypot(*(moved - driven)[:, :2].T)
    limit = max(0.5, 10.0 * float(np.median(errors))) if len(errors) else np.inf
    jumps = errors > limit + 0.2 * np.hypot(*driven[:, :2].T)
    # ignore long pauses: the odometry does not show what happened in them
    jumps = np.flatnonzero(jumps & (np.diff(stamps_ns) < LONG_PAUSE * 1e9)) + 1
    if not jumps.size:
        return ''
    listed = ', '.join(
        f'by {errors[image - 1]:.1f} m at {(stamps_ns[image] - stamps_ns[0]) * 1e-9:.1f} s '
        f'({end - image} images)'
        for image, end in itertools.islice(itertools.pairwise([*jumps, len(poses)]), 5)
    )
    return (
        f'the reference poses of {name} jump against its odometry, as if the localizer was '
        f'lost, at {jumps.size} images: {listed}; correct them, or leave these images out'
    )


def odometry_fault(odometry: FloatArray, reference: FloatArray) -> str:
    """Describe the wrong convention that explains how an odometry (n, 3) moves; '' if none."""
    steps, moved = (se2.steps(poses) for poses in (odometry, reference))
    travel = np.cumsum(np.append(0.0, np.hypot(*moved[:, :2].T) + np.abs(moved[:, 2])))
    marks = np.unique(np.searchsorted(travel, np.arange(0.0, travel[-1], _WINDOW)))
    true = se2.steps(reference[marks])
    bends = np.abs(true[:, 2]) > 0.3  # a wrong sign of turns does not show on straight ways
    if bends.sum() < 3:
        return ''

    def rotated(motions: FloatArray, others: FloatArray) -> tuple[float, FloatArray]:
        """Return the least-squares angle of motions (m, 3), and the odometry rotated by it."""
        first, second = (each[:, 0] + 1j * each[:, 1] for each in (motions, others))
        angle = float(np.angle(np.sum(first * second.conj())))
        return angle, np.column_stack([odometry[:, :2] @ se2.rotation(angle)[:2, :2].T, heading])

    heading = odometry[:, 2]
    turned, aside = rotated(moved, steps)  # in the frames of the robot
    _, headed = rotated(np.diff(reference, axis=0), np.diff(odometry, axis=0))
    headed[:, 2] = reference[:, 2]
    for fault, poses in (
        ('', odometry),
        ('turns to the other side: is z of its frame down (NED)?', odometry * [1, -1, -1]),
        (
            f'has its x axis turned by {np.degrees(-turned):.0f} degrees against its heading, '
            'which is right only if the camera looks aside',
            aside,
        ),
        ('has another heading than its motion: is it never set, or in degrees?', headed),
    ):
        errors = se2.between(true, se2.steps(poses[marks]))[bends]
        if np.median(np.abs(errors).sum(axis=1)) < 0.3 * _WINDOW:
            return fault
    return 'does not move as the reference poses do: is it of this run, in metres?'


def frames_apart(kernel_map: KernelMap) -> Iterator[str]:
    """
    Yield a warning for each pair of runs whose reference poses are in different frames.

    The poses of images that match best give shift and rotation between the frames; one run may
    also keep a constant distance to the left of the other. Warn if the offset of the same places
    exceeds 0.3 m and three standard deviations.
    """
    names, runs = kernel_map.run_names, {}
    for run in np.unique(kernel_map.run_index).tolist():
        runs[run] = select_evenly(np.flatnonzero(kernel_map.run_index == run), 200)
    for (one, first), (other, second) in itertools.combinations(runs.items(), 2):
        gram = kernel_map.centring.gram(first, second)
        best = gram.argmax(axis=1)
        mutual = gram.argmax(axis=0)[best] == np.arange(len(first))
        pair = first[mutual], second[best[mutual]]
        offset, deviation, turn = _offset(*(kernel_map.poses[each] for each in pair))
        if offset > max(0.3, 3.0 * deviation):
            yield (
                f'images of {names[other]} are {offset:.2f} m (± {deviation:.2f} m) away from the '
                f'same places of {names[one]}, and turned by {np.degrees(turn):.1f} degrees: are '
                'their reference poses in one frame?'
            )


def _offset(here: FloatArray, there: FloatArray) -> tuple[float, float, float]:
    """Return RMS offset between matched poses (m, 3) in metres, its deviation, and the turn."""
    if len(here) < 20:
        return 0.0, 0.0, 0.0
    # start from the frame that most pairs agree with: the identity, or that of one pair
    best = np.zeros(3)
    if _share_near(there - here) < 0.5:
        frames = np.vstack([best, se2.compose(there, se2.inverse(here))])
        best = max(frames, key=lambda frame: _share_near(there - se2.compose(frame, here)))
    moved = se2.compose(best, here)
    away, apart = moved[:, :2] - moved[:, :2].mean(axis=0), se2.difference(there, moved)
    # unknowns: x, y, turn, metres to the left
    columns = np.zeros((len(here), 3, 4))
    columns[:, [0, 1, 2], [0, 1, 2]] = 1.0
    columns[:, :2, 2] = away[:, ::-1] * [-1.0, 1.0]
    columns[:, :2, 3] = np.column_stack([-np.sin(moved[:, 2]), np.cos(moved[:, 2])])
    found, information = robust_line(columns.reshape(-1, 4), apart.ravel())
    if _share_near(apart - columns @ found) < 0.5:
        return 0.0, 0.0, 0.0
    # neighbouring pairs have correlated errors; prior deviation of the lane: 0.5 m
    covariance = np.linalg.inv(0.25 * information + np.diag([0.01, 0.01, 0.1, 4.0]))[:3, :3]
    shift = (moved - here + columns[..., :3] @ found[:3])[:, :2]
    size = float(np.sqrt(np.mean(np.sum(shift**2, axis=1))))
    slope = np.einsum('ij,ijk->k', shift, columns[:, :2, :3]) / len(here) / max(size, 1e-9)
    return size, float(np.sqrt(slope @ covariance @ slope)), float(best[2] + found[2])


def _share_near(errors: FloatArray) -> float:
    """Return the fraction of errors of poses (m, 3) that are within 1 m and 0.3 rad."""
    return float(np.mean(se2.within(errors, np.zeros(3), 1.0, 0.3)))
