"""
The kernel Bayes filter for localization; `KernelBayesLocalizer.step` is the recursion.

The belief is a kernel mean on points that may leave the poses of the map. Other hypotheses of
where the robot is have a few points each. An odometry increment moves all points. An image updates
them in these steps:

    propose    a hypothesis where the image could be, and one with a gross odometry error
    predict    model-based kernel sum rule: the kernel mean of the motion model in closed form
               ([MbKSR] eq. 21, `image_model.PoseKernel`)
    weigh      conditional kernel mean of the map at the image ([MbKSR] eq. 7, `image_model`),
               which is kernel Bayes' rule for large delta
    score      log odds of every hypothesis against a wrong place (`hypotheses`)
    choose     believe the likeliest hypothesis; keep the others while they are likely
    resample   draw points from the posterior kernel mean; learn the odometry's errors (`odometry`)
"""

from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.consecutive import ConsecutiveImages
from kbr_localization.localization.filter.hypotheses import (
    FEW_POINTS,
    Hypotheses,
    NEW_LOG_ODDS,
    RecentImages,
    sample_about,
    sample_from_image,
)
from kbr_localization.localization.filter.image_model import ImageModel, RunMean
from kbr_localization.localization.filter.odometry import gross_errors, GROSS_RATE, OdometryModel
from kbr_localization.localization.localizer import (
    Localizer,
    NO_POSE,
    NOT_ON_THIS_MAP,
    PoseEstimate,
    status_of,
    unknown_covariance,
    unknown_pose,
    UpdateGate,
)
from kbr_localization.localization.map.kernel_map import KernelMap, MapStatistics
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

HEADROOM = 5.0
"""Nats beyond the limit that log odds may reach: more would delay finding a carried robot."""
CARRIED = 0.02
"""Probability that a motion which the odometry does not report carries the robot elsewhere."""
SPREAD = 0.14
"""Bandwidths by which the points of an unconfirmed belief are spread."""
CAMERA_TURN = 0.04
"""Radians by which the camera may be turned from its mounting in the runs of the map."""


class KernelBayesLocalizer(Localizer):
    """
    The localizer `kbr`: see `Localizer` for its interface.

    `hypotheses`: the first is the belief, the others compete with it; None before the first image
    of a global start. `max_log_odds`: the highest that any of them may have.
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
        self.max_log_odds = self.statistics.evidence_limit + HEADROOM
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.diagnostics = dict.fromkeys(('updates', 'recoveries', 'frozen_images'), 0.0)
        self._now = 0.0
        self.initialize_globally()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self.hypotheses: Hypotheses | None = None
        self.run_mean = RunMean(len(self.kernel_map), 2.0 * self.config.localized_radius)
        self.recent = RecentImages()
        self.gate.reopen()
        self.consecutive.reset()
        self._last_image_at = self._last_update_at = self._now
        self._updated = False
        self._odometry_pose = np.zeros(3)
        self._metres_since_gross = self._carried = 0.0

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3), for images to confirm."""
        self.initialize_globally()
        points = sample_about(pose, covariance, self.config, self.rng)
        self.odometry.start(points)
        self.hypotheses = Hypotheses.single(points)

    def force_confirmed(self) -> None:
        """Treat the belief as confirmed until images refute it."""
        if self.hypotheses is not None:
            self.hypotheses.log_odds[0] = self.max_log_odds

    @property
    def confirmed(self) -> bool:
        """Whether the belief has more evidence than wrong places reach by chance."""
        limit = self.statistics.evidence_limit
        return self.hypotheses is not None and float(self.hypotheses.log_odds[0]) > limit

    def follow_map(self, kernel_map: KernelMap) -> bool:
        centring = self.model.centring.extended(kernel_map.descriptors)
        self.kernel_map = kernel_map
        self.model = ImageModel(kernel_map, self.config, centring)
        self.run_mean.grow(len(kernel_map))
        return True

    def set_odometry_prior(self, learnt: Calibration) -> None:
        self.odometry.resume_from(learnt)

    def particles(self, size: int) -> FloatArray:
        if self.hypotheses is None:
            return np.zeros((0, 3))
        return self.hypotheses.belief.resampled(size, np.random.default_rng(0)).poses

    def set_time(self, seconds: float) -> None:
        self._now = seconds

    def request_update(self) -> None:
        self.gate.open()

    def wants_image(self) -> bool:
        """Whether the robot has moved enough, or may have been moved unnoticed."""
        return self.gate.due or self._now - self._last_image_at >= 0.5

    def predict(self, odometry_increment: FloatArray) -> None:
        self._updated = False
        self._odometry_pose = se2.compose(self._odometry_pose, odometry_increment)
        self.gate.add(odometry_increment)
        if self.hypotheses is not None:
            self.odometry.predict(odometry_increment, self.hypotheses.points)

    def update(self, descriptor: np.ndarray) -> None:
        """Update the belief by the descriptor (d,) of an image, if an update is due."""
        # Test the odometry by consecutive images.
        due, before = self.gate.due, self.consecutive.probability
        self.consecutive.update(descriptor, self._odometry_pose, self._now - self._last_image_at)
        self._last_image_at = self._now
        self._carried = max(self._carried, CARRIED * (self.consecutive.probability - before))
        if not due and not self.consecutive.odometry_wrong:
            return
        # Ignore the image of a frozen camera, but move the points by the noise of the odometry.
        if self.consecutive.repeated:
            self.gate.restart()
            self.diagnostics['frozen_images'] += 1
            if self.hypotheses is not None:
                self.odometry.sample_noise(self.hypotheses.points, self.rng, learn=False)
            return
        # Compare the image with the map; with a large one, only near the points and by its index.
        nearby = None
        if self.kernel_map.is_large and self.hypotheses is not None:
            nearby = self.model.in_reach(self.hypotheses.points.poses)
        self.step(self.kernel_map.compare(descriptor, self.hypotheses is None, nearby))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update the belief by the kernel values (n,) of an image with the map."""
        self.step(Similarity.from_vector(similarities))

    def step(self, compared: Similarity) -> None:
        """Update the belief by an image that was compared with the map: the recursion."""
        config, model, metres = self.config, self.model, self.gate.metres
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = compared.best
        # Subtract what the images of this run have in common.
        seen = self.run_mean.subtract(model.centring.centre(compared), self._odometry_pose)
        # Start where the image could have been taken, if there is no belief.
        if self.hypotheses is None:
            points = sample_from_image(model, seen, 4 * config.points, self.rng)
            self.odometry.start(points)
            self.hypotheses = Hypotheses.single(points)
        # Add noise for motion that consecutive images show and the odometry does not report.
        metres = self._add_unreported_motion(metres)
        # Propose hypotheses: where the image could be, and with a gross odometry error.
        hypotheses, confirmed = self._propose(self.hypotheses, seen, metres), self.confirmed
        # Predict: the sum rule integrates the motion noise into the kernel of poses (eq. 21).
        noise = self.odometry.total_noise(learn=confirmed)
        # Weigh all points by the conditional kernel mean at the image (eq. 7).
        hypotheses.weigh(model, seen, noise, self.recent.informative, config.outlier_rate)
        # Score every hypothesis against a wrong place.
        weight, reference = self.decorrelation(metres), self.statistics.reference_log_likelihood
        hypotheses.update_log_odds(weight, reference, self.max_log_odds)
        self.recent.learn(hypotheses.likelihood[0], hypotheses.coverage[0], weight)
        # Remember the odometry errors of a confirmed belief for the next start.
        if confirmed:
            self.odometry.resume_from(self.odometry.estimate(hypotheses.belief))
        # Believe the likeliest hypothesis.
        hypotheses, changed = hypotheses.choose(self._near_mode(hypotheses))
        self.diagnostics['recoveries'] += changed
        # Draw points from the posterior kernel mean, and learn the odometry errors.
        self.hypotheses = hypotheses.resampled(config.points, self.rng)
        self.odometry.sample_noise(self.hypotheses.points, self.rng, learn=confirmed)
        # Regularise a belief that images have not confirmed.
        if not self.confirmed:
            self._spread_belief(self.hypotheses)

    def estimate(self) -> PoseEstimate:
        """Return mean, covariance and status of the belief about its highest mode."""
        if self.hypotheses is None:
            return unknown_pose(self.diagnostics, self._updated)
        hypotheses, confirmed = self.hypotheses, self.confirmed
        belief, near = hypotheses.belief, self._near_mode(hypotheses)
        pose, spread, mass = belief.moments(near[: len(belief)])
        # Multiply the mass at the mode by the probability of not being at another place.
        posterior = hypotheses.posterior()
        odds = np.exp(posterior - np.logaddexp.reduce(posterior))
        apart = hypotheses.sums(hypotheses.points.weights * ~near)
        elsewhere = float(odds[1:] @ apart[1:])
        confidence = mass * (1.0 - min(elsewhere, 1.0))
        # Trust what images confirm, unless they contradict the odometry or the map.
        trusted = confirmed and not self.consecutive.odometry_wrong
        status = status_of(confidence, self.config.localized_mass, trusted)
        mean = self.recent.log_likelihood
        if self.recent.enough and mean < self.statistics.typical_log_likelihood:
            status = NOT_ON_THIS_MAP
        covariance = unknown_covariance()
        if status not in NO_POSE:
            covariance = self._covariance(pose, spread, seen=hypotheses.ages[0] > 0)
        details = self.diagnostics | {
            'elsewhere': elsewhere,
            'evidence': float(hypotheses.log_odds[0]),
            'evidence_limit': self.statistics.evidence_limit,
            'log_likelihood': mean,
            'mass_in_radius': mass,
            'odometry_wrong': self.consecutive.probability,
            'effective_points': belief.effective_size(),
            'map_confirmed': float(confirmed),
        }
        details |= self.odometry.diagnostics(belief)
        learnt = self.odometry.learnt
        return PoseEstimate(pose, covariance, confidence, status, details, self._updated, learnt)

    def decorrelation(self, metres: float, most: float = 0.5) -> float:
        """
        Return the weight in [0, 1] of an image taken so many metres after the last one.

        Wrong places resemble many images in a row. Metres beyond `most` bandwidths do not count:
        a camera that takes few images does not make each of them surer.
        """
        return 1.0 - float(np.exp(-min(metres / self.config.position_bandwidth, most)))

    def _near_mode(self, hypotheses: Hypotheses) -> NDArray[np.bool_]:
        """Return which points (m,) are within `localized_radius` of the mode of the belief."""
        mode = hypotheses.belief.mode(self.model.kernel.widths)
        return se2.within(hypotheses.points.poses, mode, self.config.localized_radius)

    def _covariance(self, pose: FloatArray, spread: FloatArray, seen: bool) -> FloatArray:
        """
        Return the covariance (3, 3) to report, in the map frame: s (C + T (N + D) T^T) + M.

        C: `spread` (3, 3) of the points about their mode; N: noise (3, 3) of the motion since the
        last update; s: `covariance_scale`; M: uncertainty of the map at the pose. Once an image
        was `seen`, D = diag(d^2 / 12, 0, b^2), d: metres from an image of the map to the nearest
        one, b: `CAMERA_TURN`. N and D are in the base frame, which T turns into the map frame.
        """
        added, turn = self.odometry.noise, se2.rotation(pose[2])
        if seen:
            added = added + np.diag([self.model.spacing**2 / 12.0, 0.0, CAMERA_TURN**2])
        reported = self.config.covariance_scale * (spread + turn @ added @ turn.T)
        return np.asarray(reported + self.kernel_map.uncertainty_at(pose))

    def _add_unreported_motion(self, metres: float) -> float:
        """
        Add noise to the motion while consecutive images contradict the odometry.

        Return the metres since the last update, at least those that the odometry may have missed.
        """
        seconds = min(self._now - self._last_update_at, 3.0)
        self._last_update_at = self._now
        if not self.consecutive.odometry_wrong:
            return metres
        # the speed of a robot: metres and radians per second
        hidden = np.maximum(np.array([0.7, 0.7, 0.5]) * seconds, metres)
        self.odometry.noise += self.consecutive.probability * np.diag(hidden**2)
        return float(hidden[0])

    def _propose(self, hypotheses: Hypotheses, seen: Similarity, metres: float) -> Hypotheses:
        """Add a hypothesis where the image could be, and one with a gross odometry error."""
        config, belief = self.config, hypotheses.belief
        if config.carried_rate == 0.0:
            return hypotheses
        metres = max(metres, config.update_min_d)
        points = sample_from_image(self.model, seen, FEW_POINTS, self.rng, few=True)
        # the robot is the same, and so are the errors of its odometry
        points.odometry = belief.resampled(FEW_POINTS, self.rng).odometry
        rate = max(config.carried_rate * metres, 1e-12) + self._carried
        log_odds = np.logaddexp.reduce(hypotheses.log_odds) + np.log(rate)
        log_odds = np.logaddexp(log_odds, NEW_LOG_ODDS)
        proposed = hypotheses.joined(Hypotheses.single(points, log_odds))
        self._metres_since_gross, self._carried = self._metres_since_gross + metres, 0.0
        if self._metres_since_gross > config.position_bandwidth:
            points = belief.resampled(FEW_POINTS, self.rng)
            errors, turn = gross_errors(FEW_POINTS, self.rng)
            points.odometry = points.odometry + errors
            points.move(turn)
            log_odds = hypotheses.log_odds[0] + np.log(GROSS_RATE * self._metres_since_gross)
            proposed = proposed.joined(Hypotheses.single(points, log_odds, gross=True))
            self._metres_since_gross = 0.0
        return proposed

    def _spread_belief(self, hypotheses: Hypotheses) -> None:
        errors = np.zeros(hypotheses.points.poses.shape)
        size, bandwidths = hypotheses.sizes[0], self.model.kernel.bandwidths[[0, 1, 3]]
        errors[:size] = SPREAD * self.rng.standard_normal((size, 3)) * bandwidths
        hypotheses.points.move(errors)
