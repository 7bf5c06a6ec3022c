"""
The kernel Bayes filter for localization; `KernelBayesLocalizer.step` is the recursion.

The belief is a kernel mean on points that may leave the poses of the map. Places where the robot
may be instead are strata of a few points each. An odometry increment moves all points; an image
changes them in these steps:

    born       a stratum where this image could be, and one with a grossly wrong odometry
    predict    model-based kernel sum rule: the kernel mean of the motion model in closed form
               ([MbKSR] eq. 21, `pose_kernel`)
    weigh      conditional kernel mean of the map at the image ([MbKSR] eq. 7, `image_model`),
               which is kernel Bayes' rule for large delta
    judge      log odds of every stratum against a wrong place (`strata`)
    choose     believe the likeliest stratum; keep the others while they are likely
    resample   draw points from the posterior kernel mean; learn the odometry's errors (`odometry`)
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.consecutive import ConsecutiveImages
from kbr_localization.localization.filter.covariance import stated_covariance
from kbr_localization.localization.filter.image_model import ImageModel
from kbr_localization.localization.filter.odometry import CHANGE_RATE, gross_errors, OdometryModel
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.filter.run_mean import RunMean
from kbr_localization.localization.filter.strata import (
    BORN,
    evidence,
    Informative,
    log_sum,
    sample_about,
    sample_from_image,
    SMALL,
    Strata,
    weigh,
)
from kbr_localization.localization.localizer import (
    Localizer,
    NO_POSE,
    NOT_ON_THIS_MAP,
    nothing_known,
    PoseEstimate,
    status_of,
    unknown,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import FullSimilarity, Similarity
from kbr_localization.localization.update_gate import UpdateGate
from kbr_localization.se2 import FloatArray
import numpy as np

START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
SURER = 5.0  # nats beyond the limit, at most: the log odds of a carried robot
SPREAD = 0.14  # bandwidths by which the points of an unconfirmed belief are spread
MEMORY = 16.0  # images of the recent mean log likelihood
MOST_NEW = 0.5  # bandwidths of way that an image counts for, at most
LOOK = 0.5  # seconds after which an image is looked at though the odometry stands
PACE = 0.7, 0.5  # metres and radians a second of a motion that the odometry does not tell
STILL = 0.01  # metres and radians of a pose that jitters while the robot stands
WRONG = 0.5  # probability from which on the odometry counts as wrong
_LONGEST = 3.0  # seconds between images in which a robot goes on at that pace


class KernelBayesLocalizer(Localizer):
    """
    The localizer `kbr`: see `Localizer` for its interface.

    `here`: the stratum that is believed, None before a start; `others`: those that compete with
    it; `most`: the highest log odds that any of them may have.
    """

    here: Strata | None

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KbrConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.config = config or kernel_map.filter_config
        self.rng = rng or np.random.default_rng(0)
        self.kernel_map, self.model = kernel_map, ImageModel(kernel_map, self.config)
        self.odometry = OdometryModel(
            kernel_map, self.config.noise_scale, self.config.odometry_calibration
        )
        self.consecutive = ConsecutiveImages(kernel_map)
        self.statistics = kernel_map.statistics or MapStatistics()
        self.most = self.statistics.evidence_limit + SURER
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.diagnostics = dict.fromkeys(('updates', 'recoveries', 'frozen_images'), 0.0)
        self._now = 0.0
        self.initialize_globally()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self.here, self.others = None, Strata.none()
        self.run_mean = RunMean(len(self.kernel_map), 2.0 * self.config.localized_radius)
        self.informative = Informative()
        self.gate.reopen()
        self.consecutive.forget()
        self._looked = self._updated_at = self._now
        self._starts, self._updated = True, False
        self._since = np.zeros(3)  # the motion since the last image
        self._last_image: np.ndarray | None = None
        self._led_metres = 0.0
        self._recent = np.zeros(2)  # sums of log Lambda here and of its weights, with forgetting

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3), for images to confirm."""
        self.initialize_globally()
        self._start_from(sample_about(pose, covariance, self.config, self.rng))

    def confirm(self) -> None:
        """Call the belief localized until images refute it: it continues a confirmed one."""
        if self.here is not None:
            self.here.log_odds = np.array([self.most])

    @property
    def belief(self) -> Points:
        """Return the points (m,) that are believed."""
        assert self.here is not None
        return self.here.points.select(0)

    @property
    def confirmed(self) -> bool:
        """Whether images speak for the belief more than they do for any wrong place."""
        limit = self.statistics.evidence_limit
        return self.here is not None and float(self.here.posterior[0]) > limit

    @property
    def odometry_wrong(self) -> bool:
        """Whether consecutive images say that the robot moves otherwise than the odometry says."""
        return self.consecutive.probability >= WRONG

    def follow_map(self, kernel_map: KernelMap) -> bool:
        """Continue with the belief on a map that has more images at its end."""
        centring = self.model.centring.extended(kernel_map.descriptors)
        self.kernel_map = kernel_map
        self.model = ImageModel(kernel_map, self.config, centring)
        self.run_mean.grow(len(kernel_map))
        return True

    def know_odometry(self, learnt: Calibration) -> None:
        """Take what was learnt of the odometry in an earlier drive, from the next start on."""
        self.odometry.resume_from(learnt)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        if self.here is None:
            return np.zeros((0, 3))
        return self.belief.resampled(size, np.random.default_rng(0)).poses

    def tell_time(self, seconds: float) -> None:
        """Say when the next image was taken."""
        self._now = seconds

    def request_update(self) -> None:
        """Let the next image update the belief even if the robot has not moved."""
        self.gate.open()

    def wants_image(self) -> bool:
        """Whether the robot has moved enough, or may have been moved unnoticed."""
        return self.gate.due() or self._now - self._looked >= LOOK

    def wants_image_after(self, odometry_increment: FloatArray) -> bool:
        """Whether the robot will have moved enough after a further increment (3,)."""
        return self.gate.would_be_due(odometry_increment) or self.wants_image()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move all points by an increment (3,)."""
        self._updated = False
        self._since = se2.compose(self._since, odometry_increment)
        self.gate.add(odometry_increment)
        self.consecutive.predict(odometry_increment)
        self.run_mean.predict(odometry_increment)
        if self.here is not None:
            self.odometry.predict(odometry_increment, [self.here.points, self.others.points])

    def update(self, descriptor: np.ndarray) -> None:
        """Take in an image by its descriptor (d,): is it due, is it new, and what does it say."""
        due, seconds = self.gate.due(), self._now - self._looked
        self._looked = self._now
        self.consecutive.update(descriptor, seconds)
        if not due and not self.odometry_wrong:
            return
        # the same image to the last bit, though the robot has moved: the camera is stuck
        last, moved = self._last_image, np.abs(self._since).max() > STILL
        self._last_image, self._since = np.array(descriptor), np.zeros(3)
        if moved and last is not None and np.array_equal(descriptor, last):
            self.gate.restart()
            self.diagnostics['frozen_images'] += 1
            return
        nearby = None
        if self.kernel_map.is_large and self.here is not None:
            poses = [s.points.poses.reshape(-1, 3) for s in (self.here, self.others)]
            nearby = self.model.in_reach(np.concatenate(poses))
        self.step(self.kernel_map.compare(descriptor, self._starts, nearby))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Take in an image by its kernel values (n,) with the map, as the describer has them."""
        self.step(FullSimilarity(similarities))

    def step(self, compared: Similarity) -> None:
        """Take in an image that was compared with the map: the recursion of the filter."""
        metres = self.gate.metres
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = compared.best
        # Compare relative to the other images of this run.
        seen = self.run_mean.subtract(self.model.centring.of(compared))
        if self._starts:
            self._start_from(self._sample_start(seen))
        if self.here is None:
            return
        # Add the motion that the odometry does not tell, where consecutive images show one.
        metres = self._add_untold_motion(metres)
        confirmed = self.confirmed
        noise = self.odometry.total_noise(confirmed)
        # Let strata be born: where this image could be, and with a grossly wrong odometry.
        if self.config.carried_rate > 0.0:
            self._bear(seen, max(metres, self.config.update_min_d))
        # Predict by the model-based kernel sum rule, and weigh by the conditional kernel mean.
        blocks, rate = [self.here, self.others], self.config.outlier_rate
        weigh(blocks, self.model, seen, noise, self.informative.probability, rate)
        # Judge every stratum by the odds of this image against a wrong place.
        self._judge(self.new_part(metres))
        # Keep what a confirmed belief has learnt of the odometry, for the next start.
        if confirmed:
            self.odometry.resume_from(self.odometry.law(self.belief))
        # Believe the likeliest stratum.
        self.diagnostics['recoveries'] += self._choose()
        # Draw points from the posterior kernel mean, and learn the odometry's errors.
        self._resample()
        self.odometry.disperse([self.here.points, self.others.points], self.rng, learn=confirmed)
        if not self.confirmed:
            self._spread()

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.here is None:
            return nothing_known(self.diagnostics, self._updated)
        config, belief = self.config, self.belief
        mode = belief.mode(self.model.kernel.widths)
        pose, spread, mass = belief.moments_about(mode, config.localized_radius)
        elsewhere = self._probability_elsewhere(mode)
        confidence = mass * (1.0 - elsewhere)
        confirmed = self.confirmed and not self.odometry_wrong
        status = status_of(confidence, config.localized_mass, confirmed)
        sums, weight = self._recent
        mean = float(sums / weight) if weight > 0.0 else 0.0
        if weight >= 0.5 * MEMORY and mean < self.statistics.typical_log_likelihood:
            status = NOT_ON_THIS_MAP
        covariance = unknown()
        if status not in NO_POSE:
            z = mean if self.here.ages[0] else None
            noise, heading = self.odometry.noise, float(pose[2])
            covariance = stated_covariance(spread, noise, heading, z, self.model, config)
            covariance = covariance + self.kernel_map.uncertainty_at(pose)
        details = self.diagnostics | {
            'elsewhere': elsewhere,
            'evidence': float(self.here.posterior[0]),
            'evidence_limit': self.statistics.evidence_limit,
            'log_likelihood': mean,
            'mass_in_radius': mass,
            'odometry_wrong': self.consecutive.probability,
            'effective_points': float(belief.effective_size()),
            'map_confirmed': float(self.confirmed),
        }
        details |= self.odometry.described(belief)
        learnt = self.odometry.learnt
        return PoseEstimate(pose, covariance, confidence, status, details, self._updated, learnt)

    def new_part(self, metres: float, most: float = MOST_NEW) -> float:
        """
        Return the part of an image that is new, so many metres after the last one: 0 to 1.

        Places that look alike do so for many images: an image of a camera that takes few counts no
        more than one after half a bandwidth.
        """
        return 1.0 - float(np.exp(-min(metres / self.config.position_bandwidth, most)))

    def _start_from(self, points: Points) -> None:
        self._starts = False
        self.odometry.begin(points)
        self.here = Strata.born(points, 0.0)

    def _sample_start(self, seen: Similarity) -> Points:
        return sample_from_image(self.model, seen, START_FACTOR * self.config.points, self.rng)

    def _add_untold_motion(self, metres: float) -> float:
        """Return the way since the last image, at least what the odometry may have missed."""
        seconds, self._updated_at = min(self._now - self._updated_at, _LONGEST), self._now
        if not self.odometry_wrong:
            return metres
        metres = max(metres, PACE[0] * seconds)
        hidden = np.diag([metres, metres, max(metres, PACE[1] * seconds)]) ** 2
        self.odometry.noise = self.odometry.noise + self.consecutive.probability * hidden
        return metres

    def _bear(self, seen: Similarity, metres: float) -> None:
        """Let strata be born: where this image could be, and with a grossly wrong odometry."""
        assert self.here is not None
        belief, config = self.belief, self.config
        born = sample_from_image(self.model, seen, SMALL, self.rng, few=True)
        born.odometry = belief.resampled(SMALL, self.rng).odometry  # the robot is the same
        rate = max(config.carried_rate * metres, 1e-12)
        carried = log_sum(self.here, self.others) + np.log(rate)
        self.others = self.others.joined(Strata.born(born, float(np.logaddexp(carried, BORN))))
        self._led_metres += metres
        if self._led_metres > config.position_bandwidth:
            led = belief.resampled(SMALL, self.rng)
            errors, turn = gross_errors(SMALL, self.rng)
            led.odometry = led.odometry + errors
            led.move(turn)
            log_odds = float(self.here.log_odds[0] + np.log(CHANGE_RATE * self._led_metres))
            self.others = self.others.joined(Strata.born(led, log_odds, led=True))
            self._led_metres = 0.0

    def _judge(self, new: float) -> None:
        """Change the log odds of all strata by an image of which so much is new."""
        here, others = self.here, self.others
        assert here is not None
        k = self.statistics.reference_log_likelihood
        # a led stratum is at the belief's place but for the odometry; an image says nothing about
        # the stratum that was born from it
        covered = np.where(others.led, here.coverage, others.coverage)
        counts = (others.ages > 0) | others.led
        others.log_odds = others.log_odds + new * counts * evidence(others.likelihood, covered, k)
        here.log_odds = here.log_odds + new * evidence(here.likelihood, here.coverage, k)
        highest = max(here.log_odds[0], others.log_odds.max(initial=-np.inf))
        beyond = max(highest - self.most, 0.0)
        here.log_odds = np.maximum(here.log_odds - beyond, BORN)
        # where a stratum is unlikely elsewhere, another one would be born
        others.log_odds = np.maximum(others.log_odds - beyond, np.where(others.led, -np.inf, BORN))
        here.age(new)
        others.age(new)
        likelihood, coverage = float(here.likelihood[0]), float(here.coverage[0])
        weight = new * coverage
        keep = (1.0 - 1.0 / MEMORY) ** weight
        self._recent = keep * self._recent + weight * np.array([np.log(likelihood), 1.0])
        self.informative.learn(likelihood, coverage)

    def _choose(self) -> bool:
        """Believe the likeliest stratum, drop unlikely ones; tell whether the belief changed."""
        assert self.here is not None
        mode = self.belief.mode(self.model.kernel.widths)
        near = self.others.points.within(mode, self.config.localized_radius)
        at_place = (self.others.points.weights * near).sum(axis=1) > 0.5
        others = self.others.select(np.flatnonzero(self.others.led | ~at_place))
        others.gather(float(self.here.posterior[0]))
        likeliest = int(np.argmax(others.posterior)) if len(others) else 0
        changed = len(others) > 0 and others.posterior[likeliest] > self.here.posterior[0]
        if changed:
            left, self.here = self.here, others.select(np.array([likeliest]))
            self.here.led = np.zeros(1, dtype=bool)
            left.points = left.points.resampled(SMALL, self.rng)
            others = others.select(np.arange(len(others)) != likeliest).joined(left)
        self.others = others.select(others.best())
        return bool(changed)

    def _resample(self) -> None:
        """Resample the belief, and the strata of which few points carry the weight."""
        assert self.here is not None
        points, size = self.here.points, self.config.points
        if len(points) != size or points.effective_size()[0] < 0.5 * size:
            self.here.points = points.resampled(size, self.rng)
        points = self.others.points
        few = (points.effective_size() < 0.5 * SMALL)[:, np.newaxis]
        drawn = points.resampled(SMALL, self.rng)
        self.others.points = Points(
            np.where(few[..., np.newaxis], drawn.poses, points.poses),
            np.where(few, drawn.weights, points.weights),
            np.where(few[..., np.newaxis], drawn.odometry, points.odometry),
        )

    def _spread(self) -> None:
        """Spread the points of a belief that images have not confirmed: regularisation."""
        assert self.here is not None
        h, a = self.config.position_bandwidth, self.config.heading_bandwidth
        errors = self.rng.standard_normal(self.here.points.poses.shape)
        self.here.points.move(errors * SPREAD * np.array([h, h, a]))

    def _probability_elsewhere(self, mode: FloatArray) -> float:
        """Return the posterior probability of the other strata, where not at a pose (3,)."""
        assert self.here is not None
        total = log_sum(self.here, self.others, posterior=True)
        near = self.others.points.within(mode, self.config.localized_radius)
        away = 1.0 - (self.others.points.weights * near).sum(axis=1)
        return min(float(np.exp(self.others.posterior - total) @ away), 1.0)
