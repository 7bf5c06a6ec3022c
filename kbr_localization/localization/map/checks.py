"""What the arrays of a map file must be like before anything computes with them."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from kbr_localization.datasets.images import check_size
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.verified import VerifiedArray
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer
import numpy as np

FARTHEST = 1e7
"""Metres; no building is so large."""
_MOST_NOISE = (2.0 * FARTHEST) ** 2  # m²: of a reference that jumps from end to end
_LARGEST_LOG_RATIO = 100.0  # of likelihoods
_LARGEST_ERROR = 100.0  # of the odometry: metres, radians, fractions
_LONGEST_DELAY = 100.0  # of the odometry: seconds
_KINDS = {'iu': 'integers', 'u': 'unsigned integers', 'i': 'integers', 'f': 'numbers'}
_DOUBLE, _STAMP = ('f', (8,)), ('i', (8,))
_INDEX = {
    'centre': ('f', (4,)),
    'axes': ('f', (4,)),
    'scale': ('f', (4,)),
    'codes': ('i', (1,)),
    'order': ('i', (4, 8)),
    'starts': ('i', (8,)),
    'lists': ('f', (4,)),
}
_CAMERA = 'camera'


def check_arrays(
    arrays: Mapping[str, Any], describer: Describer, runs: int, image_shape: Any
) -> None:
    """Raise MapError unless arrays have the shapes, types and ranges that `KernelMap` gives."""
    n = len(arrays['poses']) if arrays['poses'].ndim else 0
    for name in ('poses', 'controls', 'next_poses'):
        _check(name, arrays[name], (n, 3), *_DOUBLE)
        if np.any(np.abs(arrays[name]) > FARTHEST):
            raise MapError(f'{name} has values beyond {FARTHEST:.0e} m')
    _check('stamps_ns', arrays['stamps_ns'], (n,), *_STAMP)
    _check('run_index', arrays['run_index'], (n,), 'iu')
    _check('descriptors', arrays['descriptors'], (n, describer.size), describer.dtype.kind)
    _check_finite(arrays['descriptors'])
    if np.any(arrays['run_index'] < 0) or np.any(arrays['run_index'] >= runs):
        raise MapError(f'run_index has values beyond the {runs} run names')
    if min(image_shape) < 1:
        raise MapError(f'image_shape is {tuple(image_shape)}: expected positive sides')


def _check_finite(descriptors: Any) -> None:
    # to look at all of them would read all of a mapped file, which looks where they are used
    mapped = isinstance(descriptors, VerifiedArray)
    if not mapped and descriptors.dtype.kind == 'f' and not np.isfinite(descriptors).all():
        raise MapError('descriptors has values that are not finite')


def check_index(arrays: Mapping[str, Any]) -> None:
    """Raise MapError unless the arrays of an index have the types that `SketchIndex` gives."""
    for name, array in arrays.items():
        if name in _INDEX:
            _check(f'index/{name}', array, array.shape, *_INDEX[name])
    for name in ('centre', 'axes', 'scale', 'lists'):
        if name in arrays and not np.isfinite(arrays[name]).all():
            raise MapError(f'index/{name} has values that are not finite')


def check_means(means: np.ndarray, images: int) -> None:
    """Raise MapError unless these are means of the image kernel of so many images."""
    _check('means', means, (images,), *_DOUBLE)
    if not np.isfinite(means).all():
        raise MapError('means has values that are not finite')


def check_cameras(state: Mapping[str, Any]) -> None:
    """
    Raise MapError unless the state of a describer has images of a size that can be decoded.

    It is what a describer makes its arrays from.
    """
    for name, part in state.items():
        if name.startswith(_CAMERA) and isinstance(part, Mapping):
            check_cameras(part)
    sides = tuple(state.get(f'image_{side}', 1) for side in ('height', 'width'))
    if not all(isinstance(side, int) and side >= 1 for side in sides):
        raise MapError(f'the images of its camera are of {sides} pixels: expected positive sides')
    check_size(sides[1], sides[0], 'of the camera of a map')


def check_calibration(calibration: Calibration) -> None:
    """Raise MapError unless the numbers are finite, and a covariance with their values."""
    shapes = {'values': (SIZE,), 'covariance': (SIZE, SIZE)}
    for name, shape in shapes.items():
        values = getattr(calibration, name)
        _check(f'calibration/{name}', values, shape, *_DOUBLE)
        if not np.all(np.abs(values) <= _LARGEST_ERROR):
            raise MapError(f'calibration/{name} has values beyond {_LARGEST_ERROR:g}')
    covariance = calibration.covariance
    symmetric = np.allclose(covariance, covariance.T, atol=1e-9)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] <= 0.0:
        raise MapError('calibration/covariance: expected a covariance that has an inverse')
    if calibration.delay is not None:
        _check('calibration/delay', calibration.delay, (2,), *_DOUBLE)
        if not np.all(np.abs(calibration.delay) <= _LONGEST_DELAY) or calibration.delay[1] < 0.0:
            raise MapError(f'calibration/delay is {calibration.delay!s:.80}: expected seconds')


def check_noise(noise: MotionNoise) -> None:
    """Raise MapError unless the numbers are finite, in range, and as many as needed."""
    aside = () if noise.per_metre_aside is None else (('per_metre_aside', 3),)
    for name, count in (('per_metre', 3), ('per_radian', 3), ('step', 4), *aside):
        values = np.asarray(getattr(noise, name))
        _check(f'motion_noise/{name}', values, (count,), 'f')
        if not np.isfinite(values).all() or np.any(values < 0.0) or np.any(values > _MOST_NOISE):
            raise MapError(f'motion_noise/{name} is {values.tolist()}: expected variances')


def check_statistics(statistics: MapStatistics) -> None:
    """Raise MapError unless the numbers are finite and in the range that kernel values allow."""
    low = {'margin_here': 0.0, 'margin_elsewhere': 0.0}
    high = {'margin_here': 2.0, 'margin_elsewhere': 2.0}
    for name, value in dataclasses.asdict(statistics).items():
        least, most = low.get(name, -_LARGEST_LOG_RATIO), high.get(name, _LARGEST_LOG_RATIO)
        # written so that NaN fails
        if not isinstance(value, float) or not least <= value <= most:
            raise MapError(
                f'statistics/{name} is {value}: expected a number in [{least:g}, {most:g}]'
            )
    if not 0.0 < statistics.margin_elsewhere <= statistics.margin_here:
        raise MapError(
            f'statistics: margins {statistics.margin_here} here and {statistics.margin_elsewhere} '
            'elsewhere: expected the latter to be positive and smaller'
        )


def _check(
    name: str,
    array: Any,
    shape: tuple[int, ...],
    kinds: str,
    widths: tuple[int, ...] = (1, 2, 4, 8),
) -> None:
    kind = array.dtype
    fits = kind.kind in kinds and kind.itemsize in widths and kind.isnative
    if array.shape != shape or not fits:
        bits = ' or '.join(str(8 * width) for width in widths)
        raise MapError(
            f'{name} is {kind.name if kind.isnative else kind.str} of shape {array.shape}: '
            f'expected {_KINDS[kinds]} of {bits} bits of shape {shape}'
        )
