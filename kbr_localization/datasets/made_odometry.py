"""Odometry for runs that have none, made from the true poses."""

from __future__ import annotations

import zlib

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.odometry_noise import (
    OdometryNoise,
    random_origin,
    reported_steps,
)
import numpy as np

STEP_NS = 50_000_000
"""Time between two poses of the odometry, as COLD has it."""
MOST_POSES = 2_000_000


def made_odometry(
    truth: OdometryTrack, name: str, seed: int = 0, noise: OdometryNoise | None = None
) -> OdometryTrack:
    """
    Odometry of true poses, at 20 Hz over their span, with errors as large as those of COLD.

    The errors follow from `seed` and from the `name` of the run, so that runs along the same way
    do not have the same errors.
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    stamps = _regular(truth.stamps_ns)
    poses = se2.interpolate(truth.stamps_ns, truth.poses, stamps)
    steps = se2.between(poses[:-1], poses[1:])
    reported = reported_steps(steps, np.diff(stamps), noise or OdometryNoise(), rng)
    return OdometryTrack(stamps, se2.chain(random_origin(rng), reported))


def odometry_note(seed: int) -> str:
    """Say that the odometry was made."""
    return (
        'odometry made from the truth with errors as large as those of COLD '
        f'(seed {seed}): the run has none of its own'
    )


def _regular(stamps_ns: se2.StampArray) -> se2.StampArray:
    """Stamps at 20 Hz, fewer over a very long span, and the last one."""
    first, last = int(stamps_ns[0]), int(stamps_ns[-1])
    step = max(STEP_NS, (last - first) // MOST_POSES)
    return np.append(np.arange(first, last, step, dtype=np.int64), np.int64(last))
