"""What the arrays of a map file must be like before anything computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbr_localization.errors import MapError
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer
import numpy as np

FARTHEST = 1e7
"""Metres; no building is so large."""
_LARGEST_DRIFT = 10.0  # rad/m
_KINDS = {'iu': 'integers', 'f': 'floating-point numbers', 'iuf': 'numbers'}


def check_arrays(
    arrays: Mapping[str, np.ndarray], describer: Describer, runs: int, image_shape: Any
) -> None:
    """Raise MapError unless arrays have the shapes, types and ranges that `KernelMap` gives."""
    n = len(arrays['poses']) if arrays['poses'].ndim else 0
    for name in ('poses', 'controls', 'next_poses'):
        _check(name, arrays[name], (n, 3), 'f')
        if np.any(np.abs(arrays[name]) > FARTHEST):
            raise MapError(f'{name} has values beyond {FARTHEST:.0e} m')
    for name in ('stamps_ns', 'run_index'):
        _check(name, arrays[name], (n,), 'iu')
    _check('descriptors', arrays['descriptors'], (n, describer.size), 'iuf')
    # integers always are, and to look at all of them would read all of a mapped file
    if arrays['descriptors'].dtype.kind == 'f' and not np.isfinite(arrays['descriptors']).all():
        raise MapError('descriptors has values that are not finite')
    if np.any(arrays['run_index'] < 0) or np.any(arrays['run_index'] >= runs):
        raise MapError(f'run_index has values beyond the {runs} run names')
    if min(image_shape) < 1:
        raise MapError(f'image_shape is {tuple(image_shape)}: expected positive sides')


def check_noise(noise: MotionNoise) -> None:
    """Raise MapError unless the numbers are finite, in range, and as many as needed."""
    for name, count in (('per_metre', 3), ('per_radian', 3), ('step', 4)):
        values = np.asarray(getattr(noise, name))
        _check(f'motion_noise/{name}', values, (count,), 'f')
        if not np.isfinite(values).all() or np.any(values < 0.0) or np.any(values > FARTHEST):
            raise MapError(f'motion_noise/{name} is {values.tolist()}: expected variances')
    for name, lowest in (('drift', -_LARGEST_DRIFT), ('drift_deviation', 0.0)):
        value = getattr(noise, name)
        if not isinstance(value, float) or not lowest <= value <= _LARGEST_DRIFT:
            raise MapError(
                f'motion_noise/{name} is {value}: expected a number in [{lowest:g}, '
                f'{_LARGEST_DRIFT:g}]'
            )


def _check(name: str, array: np.ndarray, shape: tuple[int, ...], kinds: str) -> None:
    if array.shape != shape or array.dtype.kind not in kinds:
        raise MapError(
            f'{name} is {array.dtype} of shape {array.shape}, expected {_KINDS[kinds]} of shape '
            f'{shape}'
        )
