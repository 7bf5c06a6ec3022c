"""Adding images to the map while the robot localizes on it. No rclpy here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
import math

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.map.describing import make_thumbnail
from kbr_localization.localization.map.grow import grown, LARGEST_TO_GROW, NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps.candidates import Candidates, least_similarity
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.answer import Answer
from kbr_localization.vision.multi_camera import missing_cameras
import numpy as np

SURE_MASS = 0.95
"""Fraction of the belief about the pose from which an image may join the map."""
SURE_TRAVEL = 2.0
"""Metres for which the pose has been sure before an image joins the map by itself."""
RECENT, FEW = 30, 8
"""Updates that say how well views match at present, and how few of them say nothing yet."""
CURRENT_SECONDS = 2.0
"""An older image is not the current one."""
BY_ITSELF, ON_REQUEST = 'added by itself', 'added on request'


class MapGrowth:
    """
    Decide which images join a map; everything belongs to the worker's thread.

    By itself it adds images only while the filter has proof that the robot is on the map
    (`map_fit.MapFit.confirmed`), and of places that have changed, not of a light that has: in
    another light every view matches badly, and the first images of it would match those of all
    other places better than the map's own images of these places do. They join where the map is
    recognised again behind them (`Candidates`).

    `counts`: images added, and good ones not added by reason, since the start.
    """

    def __init__(self, config: Callable[[], NodeConfig], kernel_map: KernelMap) -> None:
        self._config = config
        self.counts: Counter[str] = Counter()
        self.use(kernel_map)

    def use(self, kernel_map: KernelMap) -> None:
        """Go on with another map."""
        self._map = kernel_map
        self._added = kernel_map.poses[grown(kernel_map)]
        self._travel, self._odometry = 0.0, np.full(3, np.nan)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._candidates = Candidates()
        self._least: float | None = None
        self._frozen = self._recoveries = 0.0

    @property
    def added(self) -> int:
        """Images in the map that were added while localizing, in this and earlier runs."""
        return len(self._added)

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        sure = self._is_sure(answer)
        alive = self._follow(answer, sure)
        config = self._config()
        if not config.grow_map or not sure or self._travel < SURE_TRAVEL:
            return None
        if not answer.estimate.updated or not alive:
            return None
        similarity = self._similarity(answer)
        self._recent.append(similarity)
        if similarity >= config.grow_below:
            return self._settle()
        try:
            obstacle = self._obstacle(answer) or self._put_aside(answer, similarity)
        except LocalizationError:
            obstacle = 'a camera has no image'
        if obstacle:
            self.counts[f'not added: {obstacle}'] += 1
        return None

    def _put_aside(self, answer: Answer, similarity: float) -> str:
        """Keep an image until the map is recognised again; say why not, or nothing."""
        new = self._described(answer)
        if self._least is None:
            self._least = least_similarity(self._map, answer.image.load())
        if similarity < self._least:
            return 'the view shows nothing, as of a covered camera'
        self._candidates.images.append(new)
        return ''

    def _settle(self) -> KernelMap | None:
        """Add what was put aside, as the map is recognised."""
        usual = float(np.median(self._recent))
        images, refused = self._candidates.settle(self._map, alike=usual)
        if refused:
            self.counts['not added: the view moved along with the robot'] += refused
        return self._with(images, BY_ITSELF) if images else None

    def _obstacle(self, answer: Answer) -> str:
        """Say why an image that is worth adding must stay outside, or nothing."""
        # a method that does not report it has none
        confirmed = answer.estimate.diagnostics.get('map_confirmed', 0.0) > 0.0
        if len(self._recent) < FEW:
            return 'too few views yet to compare with'
        if not confirmed:
            return 'no proof yet that the robot is on this map'
        if float(np.median(self._recent)) < self._config().grow_below:
            return 'nearly all views match badly, as in another light'
        if self._is_near_added(answer.estimate.pose):
            return 'near one that was added'
        if len(self._map) > LARGEST_TO_GROW:
            return 'the map is too large'
        full = self.added + len(self._candidates.images) >= self._config().grow_max_images
        return 'grow_max_images reached' if full else ''

    def add(self, answer: Answer | None, age: float) -> KernelMap:
        """
        Return the map with the image of the last answer, `age` seconds old, because asked for.

        Raises LocalizationError when there is none, when it is old, or when its pose is unsure.
        """
        if answer is None or age > CURRENT_SECONDS:
            when = 'no image has been used' if answer is None else f'the last is {age:.1f} s old'
            raise LocalizationError(f'no current image to add: {when}; see /diagnostics')
        if not self._is_sure(answer):
            estimate = answer.estimate
            raise LocalizationError(
                f'the pose of the image is not sure ({estimate.status}, confidence '
                f'{estimate.confidence:.2f}, standard deviation {_deviation(answer):.2f} m): '
                f'expected localized, {SURE_MASS} and {self._config().grow_max_sd} m; drive on'
            )
        if self.added >= self._config().grow_max_images:
            raise LocalizationError(
                f'{self.added} images were added to the map: raise grow_max_images, or build the '
                'map again'
            )
        return self._with([self._described(answer)], ON_REQUEST)

    def _described(self, answer: Answer) -> NewImage:
        image, pose = answer.image.load(), answer.estimate.pose
        descriptor = self._map.describer.describe(image)
        if missing_cameras(self._map.describer, descriptor):
            raise LocalizationError('a camera has no image: only images of all join the map')
        return NewImage(answer.stamp_ns, pose, descriptor, make_thumbnail(image))

    def _with(self, images: list[NewImage], how: str) -> KernelMap:
        self._map = with_images(self._map, images)
        self._added = np.concatenate([self._added, [image.pose for image in images]])
        self.counts[how] += len(images)
        return self._map

    def _is_sure(self, answer: Answer) -> bool:
        estimate = answer.estimate
        return (
            estimate.localized
            and estimate.confidence >= SURE_MASS
            and _deviation(answer) <= self._config().grow_max_sd
        )

    def _follow(self, answer: Answer, sure: bool) -> bool:
        """Measure the way for which the pose has been sure; say whether the camera is alive."""
        odometry = answer.odometry if answer.continued is None else answer.continued
        step = se2.between(self._odometry, odometry)[:2]
        self._odometry = odometry
        self._travel = self._travel + float(np.hypot(*step)) if sure else 0.0
        if not math.isfinite(self._travel):
            self._travel = 0.0
        told = answer.estimate.diagnostics
        frozen, recoveries = (told.get(name, 0.0) for name in ('frozen_images', 'recoveries'))
        alive, found = frozen <= self._frozen, recoveries != self._recoveries
        self._frozen, self._recoveries = frozen, recoveries
        if not sure or found:
            self._candidates.images.clear()
        return alive

    def _similarity(self, answer: Answer) -> float:
        """Similarity of the best match; a method that does not report it never adds by itself."""
        similarity = answer.estimate.diagnostics.get('best_similarity', math.inf)
        return float(self._map.per_camera(np.array(similarity)))

    def _is_near_added(self, pose: se2.FloatArray) -> bool:
        taken = np.concatenate([self._added, self._candidates.poses])
        if not len(taken):
            return False
        config = self._config()
        distance = np.hypot(*(taken - pose)[:, :2].T)
        angle = np.abs(se2.wrap_angle(taken[:, 2] - pose[2]))
        near = (distance < config.grow_spacing_d) & (angle < config.grow_spacing_a)
        return bool(near.any())


def _deviation(answer: Answer) -> float:
    covariance = answer.estimate.covariance
    return math.sqrt(max(float(np.linalg.eigvalsh(covariance[:2, :2])[-1]), 0.0))
