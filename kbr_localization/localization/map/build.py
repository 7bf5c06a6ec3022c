"""From frames of runs to a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
import logging
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.tracks import outside_fixes
from kbr_localization.errors import DatasetError, MapError, VisionError
from kbr_localization.localization.config import KbrConfig, suited_config
from kbr_localization.localization.map.describing import describe_images, DescribedImage
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.map.run_checks import odometry_fault, reference_leaps
from kbr_localization.localization.motion import measure_odometry, Track
from kbr_localization.localization.odometry_delay import (
    common_delay,
    is_late,
    measure_delay,
    put_right,
)
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, fit_cameras, fit_describer, VisionConfig
from kbr_localization.vision.describer import missing_cameras
from kbr_localization.workers import Workers
import numpy as np

LOG = logging.getLogger(__name__)

VOCABULARY_IMAGES = 200
_LATE = (
    'the odometry of %s is %.3f s (± %.3f) %s its reference poses: the map measures its errors at '
    'the right time, but a robot that drives with such stamps errs in turns, and poses at images '
    'are wrong if it is their stamps; see "Stamps" in docs/odometry.md'
)
_STILL = (
    'the poses of %s go %.1f m away from the first one, but its odometry has %.1f m of way: if '
    'that is not its wheels, or not in metres, a robot with this odometry will not be localized'
)
_LEAPS = (
    'the reference poses of %s leap against its odometry, as of a localizer that was lost: %s; '
    'correct them, or leave these images out'
)
_FRAMES = (
    'warning: reference frames differ (%s) and are treated as one; if they are not, build the map '
    'of the runs of one frame and add the others with `kbr map extend`'
)


@dataclass(frozen=True)
class Candidate:
    """A frame that may enter the map, with the odometry and pose of the next one of its run."""

    frame: Frame
    run: int
    control: FloatArray
    next_pose: FloatArray

    @property
    def pose(self) -> FloatArray:
        """Return the reference."""
        assert self.frame.reference is not None
        return self.frame.reference


def build_map(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    filter_config: KbrConfig | Mapping[str, Any] | None = None,
    max_images: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> KernelMap:
    """
    Build a map from runs with reference poses; it does not depend on the workers.

    Runs of several cameras (`MultiCameraRun`) give a map of those cameras, with the images of
    moments at which all of them have one. `filter_config`: whole, or single values by name for a
    configuration that otherwise suits the map (`sensible_config`). `max_images` keeps that many
    images, chosen to cover the runs. A frame without a reference pose or with an image that cannot
    be read is left out and counted in its dataset's `skipped`. `progress` is called with what is
    being done, the steps done and their number. Raises MapError when no image is left.
    """
    rng = np.random.default_rng(seed)
    report, workers = progress or silent, workers or Workers()
    cameras = _cameras(datasets)
    _warn_of_frames(datasets)
    candidates = candidates_of(datasets)
    chosen = candidates
    if max_images is not None:
        if max_images < 1:
            raise MapError(f'max_images: expected at least 1, got {max_images}')
        kept = cover(np.array([c.pose for c in candidates]), max_images, rng)
        chosen = [candidates[index] for index in kept]
    spread = np.linspace(0, len(chosen) - 1, min(len(chosen), VOCABULARY_IMAGES))
    images = [chosen[index].frame.image for index in np.unique(spread.astype(int))]
    config = vision or VisionConfig()
    describer: Describer
    if cameras:
        describer = fit_cameras(config, cameras, images, rng, workers, report)
    else:
        describer = fit_describer(config, images, rng, workers, report)
    chosen, described = describe_candidates(chosen, describer, datasets, report, workers)
    poses = np.array([c.pose for c in chosen])
    tracks, delay = _tracks(candidates, datasets)
    calibration, noise = measure_odometry(tracks)
    return KernelMap(
        poses=poses,
        descriptors=np.array([image.descriptor for image in described]),
        stamps_ns=np.array([c.frame.stamp_ns for c in chosen], dtype=np.int64),
        run_index=np.array([c.run for c in chosen], dtype=np.int32),
        run_names=unique_names([dataset.name for dataset in datasets]),
        describer=describer,
        image_shape=(described[0].shape[0], described[0].shape[1]),
        controls=np.array([c.control for c in chosen]),
        next_poses=np.array([c.next_pose for c in chosen]),
        filter_config=suited_config(filter_config, poses, cameras),
        motion_noise=noise,
        thumbnails=tuple(image.thumbnail for image in described),
        calibration=replace(calibration, delay=delay),
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


def candidates_of(datasets: Sequence[Dataset]) -> list[Candidate]:
    """Return the frames of runs that have a reference pose, count the others; raises MapError."""
    found: list[Candidate] = []
    outside: list[str] = []
    for run, dataset in enumerate(datasets):
        frames = [frame for frame in dataset if frame.reference is not None]
        if len(frames) < len(dataset):
            dataset.skipped['no reference pose'] = len(dataset) - len(frames)
        if not frames:
            outside.append(outside_fixes(dataset))
            continue
        odometry = np.array([frame.odometry for frame in frames])
        nowhere = np.full((1, 3), np.nan)
        controls = np.concatenate([se2.between(odometry[:-1], odometry[1:]), nowhere])
        following = [*(frame.reference for frame in frames[1:]), nowhere[0]]
        for frame, control, pose in zip(frames, controls, following, strict=True):
            assert pose is not None
            found.append(Candidate(frame, run, control, pose))
    for why in filter(None, outside):
        if not found:
            raise MapError(why)
        LOG.warning('warning: %s', why)
    if not found:
        names = ', '.join(dataset.name for dataset in datasets) or 'no runs'
        raise MapError(
            f'no image with a reference pose in {names}: nothing to build a map from; without '
            'known poses build it by --poses odometry'
        )
    return found


def _cameras(datasets: Sequence[Dataset]) -> tuple[str, ...]:
    """Names of the cameras, which must be the same in all runs; none for ordinary runs."""
    found = {dataset.cameras: dataset.name for dataset in datasets}
    if len(found) > 1:
        listed = '; '.join(f'{name}: {", ".join(c) or "one"}' for c, name in found.items())
        raise MapError(f'the runs have different cameras ({listed}): choose the same in all')
    return next(iter(found), ())


def _warn_of_frames(datasets: Sequence[Dataset]) -> None:
    """Warn of reference poses in frames of several names; runs that tell none fit to all."""
    runs_in: dict[str, list[str]] = {}
    for dataset in datasets:
        if dataset.reference_frame:
            runs_in.setdefault(dataset.reference_frame, []).append(dataset.name)
    if len(runs_in) > 1:
        listed = (f'{frame}: {", ".join(names)}' for frame, names in runs_in.items())
        LOG.warning(_FRAMES, '; '.join(listed))


def describe_candidates(
    candidates: list[Candidate],
    describer: Describer,
    datasets: Sequence[Dataset],
    report: Progress,
    workers: Workers,
) -> tuple[list[Candidate], list[DescribedImage]]:
    """Keep the candidates whose images can be used, count the others and tell why the last."""
    images = [candidate.frame.image for candidate in candidates]
    counting = partial(report, 'describing images')
    described = describe_images(describer, images, workers, counting, thumbnails=True)
    kept, misfits, trouble = [], 0, ''
    for candidate, image in zip(candidates, described, strict=True):
        reason = _refusal(describer, image)
        if not reason:
            kept.append((candidate, image))
            continue
        skipped = datasets[candidate.run].skipped
        skipped[reason] = skipped.get(reason, 0) + 1
        trouble = str(image.error or reason)
        if isinstance(image.error, VisionError):
            misfits, trouble = misfits + 1, f'{candidate.frame.name}: {trouble}'
    # where as many images do not fit as do, which of them are meant is for the user to say
    if len(kept) <= misfits or not kept:
        raise MapError(
            f'only {len(kept)} of {len(images)} images can be used: check the runs, or the size '
            f'of the images; the last that cannot: {trouble}'
        )
    if trouble:
        LOG.warning('the last image that was left out: %s', trouble)
    return [candidate for candidate, _ in kept], [image for _, image in kept]


def _refusal(describer: Describer, image: DescribedImage) -> str:
    if image.error is not None:
        return 'broken image' if isinstance(image.error, DatasetError) else 'unusable image'
    assert image.descriptor is not None
    lacking = missing_cameras(describer, image.descriptor)
    return 'without an image of each camera' if lacking else ''


def _tracks(
    candidates: list[Candidate], datasets: Sequence[Dataset]
) -> tuple[list[Track], FloatArray | None]:
    """Odometry, at the right time, and reference poses of each run; the delay of all of them."""
    tracks, delays = [], []
    for run, dataset in enumerate(datasets):
        frames = [c for c in candidates if c.run == run]
        odometry = np.array([c.frame.odometry for c in frames]).reshape(-1, 3)
        poses = np.array([c.pose for c in frames]).reshape(-1, 3)
        stamps_ns = np.array([c.frame.stamp_ns for c in frames], dtype=np.int64)
        away = float(np.hypot(*(poses[:, :2] - poses[:1, :2]).T).max(initial=0.0))
        way = float(se2.travelled(odometry).max(initial=0.0))
        if away > 1.0 and way < away / 3.0:  # more than that is for the calibration
            LOG.warning(_STILL, dataset.name, away, way)
        elif fault := odometry_fault(odometry, poses):
            LOG.warning('the odometry of %s %s', dataset.name, fault)
        elif leaps := list(reference_leaps(stamps_ns, odometry, poses)):
            until = [*(image for image, _ in leaps[1:]), len(poses)]
            LOG.warning(
                _LEAPS,
                dataset.name,
                ', '.join(
                    f'by {metres:.1f} m at {(stamps_ns[image] - stamps_ns[0]) * 1e-9:.1f} s '
                    f'({end - image} images)'
                    for (image, metres), end in zip(leaps, until, strict=True)
                ),
            )
        delay = measure_delay(dataset.odometry, stamps_ns, poses)
        if delay is not None and is_late(delay):
            side = 'behind' if delay[0] > 0.0 else 'ahead of'
            LOG.warning(_LATE, dataset.name, abs(delay[0]), delay[1], side)
            odometry = put_right(dataset.odometry, stamps_ns, delay)
        tracks.append((odometry, poses))
        delays.append(delay)
    return tracks, common_delay(delays)
