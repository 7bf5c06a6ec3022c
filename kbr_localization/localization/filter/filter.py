"""
The kernel Bayes filter for localization; `KernelBayesLocalizer.step` is the recursion.

The belief is a kernel mean on points that may leave the poses of the map. Places where the robot
may be instead are strata of a few points each. An odometry increment moves all points; an image
changes them in these steps:

    born       a stratum where this image could be, and one with a grossly wrong odometry
    predict    model-based kernel sum rule: the kernel mean of the motion model in closed form
               ([MbKSR] eq. 21, `image_model.PoseKernel`)
    weigh      conditional kernel mean of the map at the image ([MbKSR] eq. 7, `image_model`),
               which is kernel Bayes' rule for large delta
    judge      log odds of every stratum against a wrong place (`strata`)
    choose     believe the likeliest stratum; keep the others while they are likely
    resample   draw points from the posterior kernel mean; learn the odometry's errors (`odometry`)
"""

from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.consecutive import ConsecutiveImages
from kbr_localization.localization.filter.image_model import ImageModel, RunMean
from kbr_localization.localization.filter.odometry import gross_errors, GROSS_RATE, OdometryModel
from kbr_localization.localization.filter.strata import (
    BORN,
    Points,
    RecentImages,
    sample_about,
    sample_from_image,
    SMALL,
    Strata,
)
from kbr_localization.localization.localizer import (
    Localizer,
    NO_POSE,
    NOT_ON_THIS_MAP,
    nothing_known,
    PoseEstimate,
    status_of,
    unknown,
    UpdateGate,
)
from kbr_localization.localization.map.kernel_map import KernelMap, MapStatistics
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

SURER = 5.0
"""Nats beyond the limit that log odds may reach: more would delay finding a carried robot."""
CARRIED = 0.02
"""Part of the motions unknown to the odometry in which a robot is carried to any place."""
SPREAD = 0.14
"""Bandwidths by which the points of an unconfirmed belief are spread."""
MOUNTING = 0.04
"""Radians by which the camera of a drive may be turned from that of the map."""


class KernelBayesLocalizer(Localizer):
    """
    The localizer `kbr`: see `Localizer` for its interface.

    `strata`: the first is believed, the others compete with it; none before a start. `most`: the
    highest log odds that any of them may have.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KbrConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.config = config or kernel_map.filter_config
        self.rng = rng or np.random.default_rng(0)
        self.kernel_map, self.model = kernel_map, ImageModel(kernel_map, self.config)
        self.odometry = OdometryModel(kernel_map, self.config)
        self.consecutive = ConsecutiveImages(kernel_map)
        self.statistics = kernel_map.statistics or MapStatistics()
        self.most = self.statistics.evidence_limit + SURER
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.diagnostics = dict.fromkeys(('updates', 'recoveries', 'frozen_images'), 0.0)
        self._now = 0.0
        self.initialize_globally()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self.strata: Strata | None = None
        self.run_mean = RunMean(len(self.kernel_map), 2.0 * self.config.localized_radius)
        self.recent = RecentImages()
        self.gate.reopen()
        self.consecutive.forget()
        self._looked = self._updated_at = self._now
        self._updated = False
        self._pose = np.zeros(3)  # where the odometry has the robot
        self._led_metres = self._carried = 0.0

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3), for images to confirm."""
        self.initialize_globally()
        self._start_from(sample_about(pose, covariance, self.config, self.rng))

    def confirm(self) -> None:
        """Call the belief localized until images refute it: it continues a confirmed one."""
        if self.strata is not None:
            self.strata.log_odds[0] = self.most

    @property
    def confirmed(self) -> bool:
        """Whether images speak for the belief more than they do for any wrong place."""
        limit = self.statistics.evidence_limit
        return self.strata is not None and float(self.strata.log_odds[0]) > limit

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
        if self.strata is None:
            return np.zeros((0, 3))
        return self.strata.here.resampled(size, np.random.default_rng(0)).poses

    def tell_time(self, seconds: float) -> None:
        """Say when the next image was taken."""
        self._now = seconds

    def request_update(self) -> None:
        """Let the next image update the belief even if the robot has not moved."""
        self.gate.open()

    def wants_image(self) -> bool:
        """Whether the robot has moved enough, or may have been moved unnoticed."""
        return self.gate.due or self._now - self._looked >= 0.5

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move all points by an increment (3,)."""
        self._updated = False
        self._pose = se2.compose(self._pose, odometry_increment)
        self.gate.add(odometry_increment)
        if self.strata is not None:
            self.odometry.predict(odometry_increment, self.strata.points)

    def update(self, descriptor: np.ndarray) -> None:
        """Take in an image by its descriptor (d,): is it due, is it new, and what does it say."""
        due, before = self.gate.due, self.consecutive.probability
        self.consecutive.update(descriptor, self._pose, self._now - self._looked)
        self._looked = self._now
        self._carried = max(self._carried, CARRIED * (self.consecutive.probability - before))
        if not due and not self.consecutive.odometry_wrong:
            return
        if self.consecutive.repeated:
            self.gate.restart()
            self.diagnostics['frozen_images'] += 1
            if self.strata is not None:
                self.odometry.disperse(self.strata.points, self.rng, learn=False)
            return
        nearby = None
        if self.kernel_map.is_large and self.strata is not None:
            nearby = self.model.in_reach(self.strata.points.poses)
        self.step(self.kernel_map.compare(descriptor, self.strata is None, nearby))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Take in an image by its kernel values (n,) with the map, as the describer has them."""
        self.step(Similarity.from_vector(similarities))

    def step(self, compared: Similarity) -> None:
        """Take in an image that was compared with the map: the recursion of the filter."""
        metres = self.gate.metres
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = compared.best
        # Compare relative to the other images of this run.
        seen = self.run_mean.subtract(self.model.centring.centre(compared), self._pose)
        if self.strata is None:
            size = 4 * self.config.points
            self._start_from(sample_from_image(self.model, seen, size, self.rng))
        assert self.strata is not None
        # Add the motion that the odometry does not report, where consecutive images show one.
        metres = self._add_unreported_motion(metres)
        confirmed = self.confirmed
        noise = self.odometry.total_noise(confirmed)
        # Let strata be born: where this image could be, and with a grossly wrong odometry.
        if self.config.carried_rate > 0.0:
            self._bear(self.strata, seen, max(metres, self.config.update_min_d))
        # Predict by the model-based kernel sum rule, and weigh by the conditional kernel mean.
        informative = self.recent.informative
        self.strata.weigh(self.model, seen, noise, informative, self.config.outlier_rate)
        # Judge every stratum by the odds of this image against a wrong place.
        new = self.new_part(metres)
        self.strata.judge(new, self.statistics.reference_log_likelihood, self.most)
        self.recent.learn(float(self.strata.likelihood[0]), float(self.strata.coverage[0]), new)
        # Keep what a confirmed belief has learnt of the odometry, for the next start.
        belief = self.strata.here
        if confirmed:
            self.odometry.resume_from(self.odometry.law(belief))
        # Believe the likeliest stratum.
        mode = belief.mode(self.model.kernel.widths)
        near = se2.within(self.strata.points.poses, mode, self.config.localized_radius)
        self.strata, changed = self.strata.choose(near)
        self.diagnostics['recoveries'] += changed
        # Draw points from the posterior kernel mean, and learn the odometry's errors.
        self.strata = self.strata.resampled(self.config.points, self.rng)
        self.odometry.disperse(self.strata.points, self.rng, learn=confirmed)
        if not self.confirmed:
            self._spread(self.strata)

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.strata is None:
            return nothing_known(self.diagnostics, self._updated)
        strata, config, confirmed = self.strata, self.config, self.confirmed
        belief = strata.here
        mode = belief.mode(self.model.kernel.widths)
        near = se2.within(strata.points.poses, mode, config.localized_radius)
        pose, spread, mass = belief.moments(near[: strata.sizes[0]])
        posterior = strata.posterior()
        odds = np.exp(posterior - np.logaddexp.reduce(posterior))
        elsewhere = float(odds[1:] @ strata.sums(strata.points.weights * ~near)[1:])
        confidence, wrong = mass * (1.0 - min(elsewhere, 1.0)), self.consecutive.odometry_wrong
        status = status_of(confidence, config.localized_mass, confirmed and not wrong)
        mean = self.recent.log_likelihood
        if self.recent.many and mean < self.statistics.typical_log_likelihood:
            status = NOT_ON_THIS_MAP
        if status in NO_POSE:
            covariance = unknown()
        else:
            covariance = self._stated(spread, float(pose[2]), bool(strata.ages[0]))
            covariance = covariance + self.kernel_map.uncertainty_at(pose)
        details = self.diagnostics | {
            'elsewhere': elsewhere,
            'evidence': float(strata.log_odds[0]),
            'evidence_limit': self.statistics.evidence_limit,
            'log_likelihood': mean,
            'mass_in_radius': mass,
            'odometry_wrong': self.consecutive.probability,
            'effective_points': belief.effective_size(),
            'map_confirmed': float(confirmed),
        }
        details |= self.odometry.described(belief)
        learnt = self.odometry.learnt
        return PoseEstimate(pose, covariance, confidence, status, details, self._updated, learnt)

    def new_part(self, metres: float, most: float = 0.5) -> float:
        """
        Return the part of an image that is new, so many metres after the last one: 0 to 1.

        Wrong places resemble many images in a row: an image of a camera that takes few counts no
        more than one after half a bandwidth.
        """
        return 1.0 - float(np.exp(-min(metres / self.config.position_bandwidth, most)))

    def _stated(self, spread: FloatArray, heading: float, seen: bool) -> FloatArray:
        """
        Return the covariance (3, 3) to state, in the map frame, without the map's own.

        It is s (C + T (N + D) T^T). C: `spread` (3, 3) of the points about their highest mode; N:
        noise (3, 3) of the motion since the last update; s: `covariance_scale`. Where an image was
        `seen`, D = diag(d^2 / 12, 0, b^2), d: metres from an image of the map to the nearest one,
        b: `MOUNTING`. N and D are along, across and in heading of the robot, and T turns them into
        the axes of the map.
        """
        added, turn = self.odometry.noise, se2.rotation(heading)
        if seen:
            added = added + np.diag([self.model.spacing**2 / 12.0, 0.0, MOUNTING**2])
        return np.asarray(self.config.covariance_scale * (spread + turn @ added @ turn.T))

    def _start_from(self, points: Points) -> None:
        self.odometry.begin(points)
        self.strata = Strata.born(points, 0.0)

    def _add_unreported_motion(self, metres: float) -> float:
        """Return the way since the last image, at least what the odometry may have missed."""
        seconds, self._updated_at = min(self._now - self._updated_at, 3.0), self._now
        if not self.consecutive.odometry_wrong:
            return metres
        # the pace of a robot: metres and radians a second
        hidden = np.maximum(np.array([0.7, 0.7, 0.5]) * seconds, metres)
        self.odometry.noise += self.consecutive.probability * np.diag(hidden**2)
        return float(hidden[0])

    def _bear(self, strata: Strata, seen: Similarity, metres: float) -> None:
        """Let strata be born: where this image could be, and with a grossly wrong odometry."""
        belief, config = strata.here, self.config
        born = sample_from_image(self.model, seen, SMALL, self.rng, few=True)
        born.odometry = belief.resampled(SMALL, self.rng).odometry  # the robot is the same
        rate = max(config.carried_rate * metres, 1e-12) + self._carried
        carried = float(np.logaddexp.reduce(strata.log_odds) + np.log(rate))
        joined = strata.joined(Strata.born(born, float(np.logaddexp(carried, BORN))))
        self._led_metres, self._carried = self._led_metres + metres, 0.0
        if self._led_metres > config.position_bandwidth:
            led = belief.resampled(SMALL, self.rng)
            errors, turn = gross_errors(SMALL, self.rng)
            led.odometry = led.odometry + errors
            led.move(turn)
            log_odds = float(strata.log_odds[0] + np.log(GROSS_RATE * self._led_metres))
            joined = joined.joined(Strata.born(led, log_odds, led=True))
            self._led_metres = 0.0
        self.strata = joined

    def _spread(self, strata: Strata) -> None:
        """Spread the points of a belief that images have not confirmed: regularisation."""
        errors = np.zeros(strata.points.poses.shape)
        size, bandwidths = strata.sizes[0], self.model.kernel.bandwidths[[0, 1, 3]]
        errors[:size] = SPREAD * self.rng.standard_normal((size, 3)) * bandwidths
        strata.points.move(errors)
