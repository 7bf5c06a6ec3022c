"""Time of every stage of a frame while tracking, and of whole frames."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, TypeVar

from benchmarks.scene import Scene, START
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.vision.learned_features import LearnedFeatures
from kbr_localization.vision.pyramid_describer import PyramidDescriber
import numpy as np

Result = TypeVar('Result')
EXTRACTION = ('preparation', 'dense SIFT')
DESCRIPTION = (*EXTRACTION, 'quantisation', 'pyramid')
STAGES = (*DESCRIPTION, 'kernel vector', 'predict', 'update', 'estimate', 'publish')
PER_FRAME = ('predict', 'estimate', 'publish')
"""Stages of every frame; the others wait until the robot has moved."""


class Stopwatch:
    """Seconds of stages by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, stage: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Time one call and return its result."""
        start = time.perf_counter()
        result = function(*arguments)
        self.seconds.setdefault(stage, []).append(time.perf_counter() - start)
        return result


def stage_times(
    scene: Scene, publish: Callable[[Any, int], None] | None
) -> dict[str, list[float]]:
    """Track the drive once; seconds of every stage, of all frames or of those with an update."""
    watch = Stopwatch()
    localizer = KernelBayesFilter(scene.kernel_map)
    localizer.initialize(scene.start, START)
    for frame, image, increment in zip(
        scene.frames, scene.images, scene.increments(), strict=True
    ):
        watch('predict', localizer.predict, increment)
        if localizer.wants_image():
            descriptor = describe_in_stages(watch, scene.kernel_map.describer, image)
            similarity = watch('kernel vector', scene.kernel_map.compare, descriptor)
            watch('update', localizer._take_in, similarity, descriptor)
        estimate = watch('estimate', localizer.estimate)
        if publish is not None:
            watch('publish', publish, estimate, frame.stamp_ns)
    return watch.seconds


def describe_in_stages(watch: Stopwatch, describer: Any, image: np.ndarray) -> np.ndarray:
    """Describe an image, every stage timed."""
    assert isinstance(describer, PyramidDescriber)
    local = describer._local
    assert not isinstance(local, LearnedFeatures)
    grey = watch('preparation', describer.preparation.grey, image)
    patches = watch('dense SIFT', local.describe, grey)
    words = watch('quantisation', describer.words, patches)
    return watch('pyramid', describer.counts, words)


def frame_times(scene: Scene, localizer: Any) -> tuple[list[float], list[float]]:
    """Track the drive once; seconds from image to estimate of frames with and without update."""
    tracker = Tracker(scene.kernel_map, localizer)
    tracker.initialize(scene.start, START)
    updated: list[float] = []
    others: list[float] = []
    for frame, image in zip(scene.frames, scene.images, strict=True):
        start = time.perf_counter()
        estimate = tracker.process(frame.stamp_ns, image, frame.odometry)
        (updated if estimate.updated else others).append(time.perf_counter() - start)
    return updated, others


def filter_times(scene: Scene, localizer: Localizer, descriptors: list[np.ndarray]) -> list[float]:
    """Seconds of predict, update (the kernel vector included) and estimate at every frame."""
    localizer.initialize(scene.start, START)
    seconds = []
    for descriptor, increment in zip(descriptors, scene.increments(), strict=False):
        start = time.perf_counter()
        localizer.predict(increment)
        localizer.update(descriptor)
        localizer.estimate()
        seconds.append(time.perf_counter() - start)
    return seconds
