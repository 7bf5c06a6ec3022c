"""Build a map from runs with reference poses; workers describe the images."""

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
from kbr_localization.localization import motion
from kbr_localization.localization.map.decay import with_sensible_config
from kbr_localization.localization.map.grow import make_thumbnail
from kbr_localization.localization.map.kernel_map import KernelMap, PER_IMAGE
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.map.run_checks import run_fault
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, fit_describer, VisionConfig
from kbr_localization.vision.describer import missing_cameras
from kbr_localization.vision.preparation import load, LoadableImage, select_evenly
from kbr_localization.workers import run_batches
import numpy as np

LOG = logging.getLogger(__name__)

VOCABULARY_IMAGES = 200
_LATE = (
    'the odometry of %s is %.3f s (± %.3f) %s its reference poses: this delay is removed for the '
    'map, but a robot that drives with it has errors in turns, and if the stamps of the reference '
    'are wrong, so are the poses of the images; see "Stamps" in docs/odometry.md'
)


@dataclass(frozen=True)
class DescribedImage:
    """Descriptor (d,) or error of an image, (height, width), JPEG file, and processor time."""

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
    """Build a map of runs with reference poses; see `describe_runs` for arguments and errors."""
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
    Build a map of runs with the default filter configuration.

    Runs of several cameras (`join_cameras`) give a map of these cameras, of the moments at which
    all of them have an image. `max_images`: keep at most so many images, which cover the runs.
    `describer`: use this one instead of fitting one. Unless `known`, poses are those of the
    odometry, and its errors are not measured. A frame without a reference pose or with an unusable
    image is left out and counted in its dataset's `skipped`. Raises MapError if no image is left.
    """
    rng = np.random.default_rng(seed)
    cameras = _cameras(datasets, known)
    posed = _frames_with_poses(datasets, known)
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
        **(_measure_odometry(posed, datasets) if known else {}),
    )


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique names: a repeated `run` becomes `run (2)`."""
    unique: list[str] = []
    for name in names:
        numbered, number = name, 1
        while numbered in unique:
            number += 1
            numbered = f'{name} ({number})'
        unique.append(numbered)
    return tuple(unique)


def _cameras(datasets: Sequence[Dataset], known: bool) -> tuple[str, ...]:
    """Return the cameras of all runs; raise MapError if they differ; check the frames."""
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
            'reference frames differ (%s) and are treated as one; if they are not, build '
            'the map of the runs of one frame and add the others with `kbr map extend`',
            '; '.join(f'{frame}: {", ".join(names)}' for frame, names in runs_in.items()),
        )
    return next(iter(found), ())


def _frames_with_poses(datasets: Sequence[Dataset], known: bool) -> dict[str, Any]:
    """Return `frames` (n,) with poses and their rows of a map, by name; count the other frames."""
    rows, outside = list[tuple[int, Frame]](), []
    for run, dataset in enumerate(datasets):
        own = [frame for frame in dataset if not known or frame.reference is not None]
        if len(own) < len(dataset):
            dataset.skipped['no reference pose'] = len(dataset) - len(own)
        rows += [(run, frame) for frame in own]
        if not own:
            outside.append(explain_missing_reference(dataset))
    for fault in filter(None, outside):
        if not rows:
            raise MapError(fault)
        LOG.warning('%s', fault)
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
    """Return `controls` and `next_poses` (n, 3) of a map, NaN at the ends of segments (n,)."""
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
    """Return the indices of usable images; count the others in their runs, log the last one."""
    used, unusable, fault = [], 0, ''
    for number, (image, frame, run) in enumerate(zip(described, frames, runs, strict=True)):
        if isinstance(image.error, DatasetError):
            reason, fault = 'broken image', str(image.error)
        elif image.descriptor is None:
            reason, fault = 'unusable image', f'{frame.name}: {image.error}'
            unusable += 1
        elif missing_cameras(describer, image.descriptor):
            reason = fault = 'without an image of each camera'
        else:
            used.append(number)
            continue
        run.skipped[reason] = run.skipped.get(reason, 0) + 1
    # with as many unusable images as usable ones the user has to decide which ones are meant
    if len(used) <= unusable or not used:
        raise MapError(
            f'only {len(used)} of {len(frames)} images can be used: check the runs, or the size '
            f'of the images; the last unusable one: {fault}'
        )
    if fault:
        LOG.warning('the last image that was left out: %s', fault)
    kept = {runs[number] for number in used}
    for run in dict.fromkeys(runs):
        if run not in kept:
            LOG.warning('the map has no image of %s: none of those chosen can be used', run.name)
    return used


def _measure_odometry(posed: dict[str, Any], datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Measure delay, errors and noise of the odometry against the reference poses."""
    tracks, delays = [], []
    for run in np.unique(posed['run_index']):
        own, dataset = posed['run_index'] == run, datasets[run]
        odometry, poses, stamps_ns = (posed[n][own] for n in ('odometry', 'poses', 'stamps_ns'))
        if fault := run_fault(dataset.name, stamps_ns, odometry, poses):
            LOG.warning('%s', fault)
        # use the measured poses: those at images may have been interpolated by the odometry
        fixes = dataset.fixes
        assert fixes is not None
        some = np.s_[:: max(1, len(fixes.stamps_ns) // len(stamps_ns))]
        delay = motion.measure_delay(dataset.odometry, fixes.stamps_ns[some], fixes.poses[some])
        if delay is not None and motion.is_significant_delay(delay):
            side = 'behind' if delay[0] > 0.0 else 'ahead of'
            LOG.warning(_LATE, dataset.name, abs(delay[0]), delay[1], side)
            odometry = motion.correct_delay(dataset.odometry, stamps_ns, delay)
        tracks.append((odometry, poses))
        delays.append(delay)
    calibration, noise = motion.measure_odometry(tracks)
    delayed = replace(calibration, delay=motion.common_delay(delays))
    return {'calibration': delayed, 'motion_noise': noise}


def describe_images(
    describer: Describer, images: Sequence[LoadableImage], what: str, thumbnails: bool = False
) -> list[DescribedImage]:
    """Describe images, or images that functions load; progress is reported as `what`."""
    # pickle the describer here, so that each process unpickles it only once
    work = functools.partial(_describe_all, pickle.dumps(describer), thumbnails)
    return run_batches(what, work, images, 64)


def _describe_all(
    packed: bytes, thumbnails: bool, images: Sequence[LoadableImage]
) -> list[DescribedImage]:
    return [_describe(_unpickled(packed), image, thumbnails) for image in images]


_unpickled = functools.lru_cache(1)(pickle.loads)


def _describe(describer: Describer, source: LoadableImage, thumbnail: bool) -> DescribedImage:
    start = time.process_time()
    try:
        image = load(source)
        descriptor = describer.describe(image)
    except (DatasetError, VisionError) as error:
        return DescribedImage(None, seconds=time.process_time() - start, error=error)
    seconds = time.process_time() - start
    small = make_thumbnail(image) if thumbnail else b''
    return DescribedImage(descriptor, image.shape[:2], small, seconds)
