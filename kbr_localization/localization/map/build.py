"""From frames of runs to a map; many images are described by workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import functools
import logging
import pickle
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.tracks import explain_missing_reference
from kbr_localization.errors import DatasetError, MapError, VisionError
from kbr_localization.localization.map.decay import with_sensible_config
from kbr_localization.localization.map.grow import make_thumbnail
from kbr_localization.localization.map.kernel_map import KernelMap, PER_IMAGE
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.map.run_checks import run_fault
from kbr_localization.localization.motion import (
    common_delay,
    is_late,
    measure_delay,
    measure_odometry,
    put_right,
)
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, fit_describer, VisionConfig
from kbr_localization.vision.describer import missing_cameras
from kbr_localization.vision.preparation import load, LoadableImage, select_evenly
from kbr_localization.workers import run_batches
import numpy as np

LOG = logging.getLogger(__name__)

VOCABULARY_IMAGES = 200
_LATE = (
    'the odometry of %s is %.3f s (± %.3f) %s its reference poses: the map measures its errors at '
    'the right time, but a robot that drives with such stamps errs in turns, and poses at images '
    'are wrong if it is their stamps; see "Stamps" in docs/odometry.md'
)


@dataclass(frozen=True)
class DescribedImage:
    """Descriptor (d,) or error, (height, width), JPEG file, and processor time of an image."""

    descriptor: np.ndarray | None
    shape: tuple[int, ...] = ()
    thumbnail: bytes = b''
    seconds: float = 0.0
    error: DatasetError | VisionError | None = None


def build_map(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    filter_values: Mapping[str, Any] | None = None,
    max_images: int | None = None,
    seed: int = 0,
) -> KernelMap:
    """Build a map of runs with reference poses, as `describe_runs`, with values of the filter."""
    described = describe_runs(datasets, vision, max_images, seed)
    return with_sensible_config(described, filter_values)


def describe_runs(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    max_images: int | None = None,
    seed: int = 0,
    describer: Describer | None = None,
    known: bool = True,
) -> KernelMap:
    """
    Make a map, with the default configuration, of runs with reference poses.

    Runs of several cameras (`join_cameras`) give a map of those cameras, with the images of
    moments at which all of them have one. `max_images` keeps that many images, chosen to cover the
    runs. `describer`: that of another map, else one is learnt. Unless poses are `known`, those of
    the odometry stand for them, and its errors are not measured. A frame without a reference pose
    or with an image that cannot be read is left out and counted in its dataset's `skipped`. Raises
    MapError when no image is left.
    """
    rng = np.random.default_rng(seed)
    cameras = _cameras(datasets, known)
    posed = _posed_frames(datasets, known)
    chosen = np.arange(len(posed['frames']))
    if max_images is not None:
        chosen = cover(posed['poses'], max_images, rng)
    frames = posed['frames'][chosen]
    if describer is None:
        images = [frame.image for frame in select_evenly(frames, VOCABULARY_IMAGES)]
        describer = fit_describer(vision or VisionConfig(), images, rng, cameras)
    images = [frame.image for frame in frames]
    described = describe_images(describer, images, 'describing images', thumbnails=True)
    runs = [datasets[run] for run in posed['run_index'][chosen]]
    used = _usable(described, describer, frames, runs)
    described = [described[index] for index in used]
    return KernelMap(
        **{name: posed[name][chosen[used]] for name in PER_IMAGE if name in posed},
        descriptors=np.array([image.descriptor for image in described]),
        run_names=unique_names([dataset.name for dataset in datasets]),
        describer=describer,
        image_shape=(described[0].shape[0], described[0].shape[1]),
        thumbnails=tuple(image.thumbnail for image in described),
        **(_measured(posed, datasets) if known else {}),
    )


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names with a number where one was there before: `run` and `run (2)`."""
    unique: list[str] = []
    for name in names:
        numbered, number = name, 1
        while numbered in unique:
            number += 1
            numbered = f'{name} ({number})'
        unique.append(numbered)
    return tuple(unique)


def _cameras(datasets: Sequence[Dataset], known: bool) -> tuple[str, ...]:
    """Names of the cameras, which must be the same in all runs; warns of different frames."""
    found: dict[tuple[str, ...], str] = {}
    runs_in: dict[str, list[str]] = {}
    for dataset in datasets:
        found[dataset.cameras] = dataset.name
        if known and dataset.reference_frame:
            runs_in.setdefault(dataset.reference_frame, []).append(dataset.name)
    if len(found) > 1:
        listed = '; '.join(f'{name}: {", ".join(c) or "one"}' for c, name in found.items())
        raise MapError(f'the runs have different cameras ({listed}): choose the same in all')
    if len(runs_in) > 1:
        LOG.warning(
            'warning: reference frames differ (%s) and are treated as one; if they are not, build '
            'the map of the runs of one frame and add the others with `kbr map extend`',
            '; '.join(f'{frame}: {", ".join(names)}' for frame, names in runs_in.items()),
        )
    return next(iter(found), ())


def _posed_frames(datasets: Sequence[Dataset], known: bool) -> dict[str, Any]:
    """Rows (n, ...) in a map of `frames` (n,) with poses, see `describe_runs`; counts others."""
    rows, outside = list[tuple[int, Frame]](), []
    for run, dataset in enumerate(datasets):
        own = [frame for frame in dataset if not known or frame.reference is not None]
        if len(own) < len(dataset):
            dataset.skipped['no reference pose'] = len(dataset) - len(own)
        rows += [(run, frame) for frame in own]
        if not own:
            outside.append(explain_missing_reference(dataset))
    for why in filter(None, outside):
        if not rows:
            raise MapError(why)
        LOG.warning('warning: %s', why)
    if not rows:
        names = ', '.join(dataset.name for dataset in datasets) or 'no runs'
        raise MapError(
            f'no image with a reference pose in {names}: nothing to build a map from; without '
            'known poses build it by --poses odometry'
        )
    run_index, frames = zip(*rows, strict=True)
    posed = {
        'frames': np.array(frames, dtype=object),
        'odometry': np.array([frame.odometry for frame in frames]),
        'poses': np.array([frame.reference if known else frame.odometry for frame in frames]),
        'stamps_ns': np.array([frame.stamp_ns for frame in frames], dtype=np.int64),
        'run_index': np.array(run_index, dtype=np.int32),
    }
    return posed | transitions(posed['odometry'], posed['poses'], posed['run_index'])


def transitions(odometry: FloatArray, poses: FloatArray, segment: np.ndarray) -> dict[str, Any]:
    """Return `controls` and `next_poses` (n, 3) of poses (n, 3), NaN at the ends of segments."""
    ends = np.append(np.diff(segment) != 0, True)[:, np.newaxis]
    controls = se2.between(odometry, np.roll(odometry, -1, axis=0))
    return {
        'controls': np.where(ends, np.nan, controls),
        'next_poses': np.where(ends, np.nan, np.roll(poses, -1, axis=0)),
    }


def _usable(
    described: Sequence[DescribedImage],
    describer: Describer,
    frames: Sequence[Frame],
    runs: Sequence[Dataset],
) -> list[int]:
    """Numbers of the images that can be used; count the others in their runs, name the last."""
    used, misfits, trouble = [], 0, ''
    for number, (image, frame, run) in enumerate(zip(described, frames, runs, strict=True)):
        if isinstance(image.error, DatasetError):
            reason, trouble = 'broken image', str(image.error)
        elif image.descriptor is None:
            reason, trouble = 'unusable image', f'{frame.name}: {image.error}'
            misfits += 1
        elif missing_cameras(describer, image.descriptor):
            reason = trouble = 'without an image of each camera'
        else:
            used.append(number)
            continue
        run.skipped[reason] = run.skipped.get(reason, 0) + 1
    # where as many images do not fit as do, which of them are meant is for the user to say
    if len(used) <= misfits or not used:
        raise MapError(
            f'only {len(used)} of {len(frames)} images can be used: check the runs, or the size '
            f'of the images; the last that cannot: {trouble}'
        )
    if trouble:
        LOG.warning('the last image that was left out: %s', trouble)
    return used


def _measured(posed: Mapping[str, np.ndarray], datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Measure errors and noise of the odometry, at the right time, against reference poses."""
    tracks, delays = [], []
    for run in np.unique(posed['run_index']):
        own, dataset = posed['run_index'] == run, datasets[run]
        odometry, poses, stamps_ns = (posed[n][own] for n in ('odometry', 'poses', 'stamps_ns'))
        if fault := run_fault(dataset.name, stamps_ns, odometry, poses):
            LOG.warning('%s', fault)
        # those of the images may be moved by the odometry itself
        fixes = dataset.fixes
        assert fixes is not None
        some = np.s_[:: max(1, len(fixes.stamps_ns) // len(stamps_ns))]
        delay = measure_delay(dataset.odometry, fixes.stamps_ns[some], fixes.poses[some])
        if delay is not None and is_late(delay):
            side = 'behind' if delay[0] > 0.0 else 'ahead of'
            LOG.warning(_LATE, dataset.name, abs(delay[0]), delay[1], side)
            odometry = put_right(dataset.odometry, stamps_ns, delay)
        tracks.append((odometry, poses))
        delays.append(delay)
    calibration, noise = measure_odometry(tracks)
    delayed = replace(calibration, delay=common_delay(delays))
    return {'calibration': delayed, 'motion_noise': noise}


def describe_images(
    describer: Describer,
    images: Sequence[LoadableImage],
    what: str,
    thumbnails: bool = False,
) -> list[DescribedImage]:
    """Describe images, or what functions load, in their order; progress is reported as `what`."""
    # each process unpacks the describer once
    work = functools.partial(_describe_all, pickle.dumps(describer), thumbnails)
    return run_batches(what, work, images, 64)


def _describe_all(
    packed: bytes, thumbnails: bool, images: Sequence[LoadableImage]
) -> list[DescribedImage]:
    return [_describe(_unpacked(packed), image, thumbnails) for image in images]


_unpacked = functools.lru_cache(1)(pickle.loads)


def _describe(describer: Describer, source: LoadableImage, thumbnail: bool) -> DescribedImage:
    start = time.process_time()
    try:
        image = load(source)
        descriptor = describer.describe(image)
    except (DatasetError, VisionError) as error:
        return DescribedImage(None, seconds=time.process_time() - start, error=error)
    seconds = time.process_time() - start
    small = make_thumbnail(image) if thumbnail else b''
    shape = image.shape[:2]
    return DescribedImage(descriptor, shape, small, seconds)
