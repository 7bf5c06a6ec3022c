"""
The kernel Bayes filter: the model-based kernel sum rule and the kernel Bayes rule in turn.

The belief is the kernel mean sum_j gamma_j k_X(., U_j) of weights gamma on points U_j, which are
poses that may leave those X_i of the map. An odometry increment u and an image y change it so:

    predict     sum_j gamma_j int k_X(., x) p(x | U_j, u) dx             [MbKSR] eq. 21
                with one x drawn for every point when an image comes: U_j <- x ~ p(. | U_j, u)
                (sampling of a kernel Monte Carlo filter, Kanagawa et al., AAAI 2014); p has the
                odometry's errors, and until a place is confirmed the points are spread anew
    compare     k_Y(y) = (k_Y(Y_1, y), ..., k_Y(Y_n, y)), the images Y_i of the map, and
                k_Y = exp((k~ - 1) / sigma^2) of the centred image kernel k~ (`map.centring`)
    update      gamma <- gamma * B^T (G_Y diag(B gamma)_+ + delta I)^-1 k_Y(y)
                B = (G_X + n epsilon I)^-1 k_X(X, U) ([MbKSR] eq. 7): C_ZW (C_WW + delta I)^-1
                k_Y(., y) of [KBR] eq. 10 on points off the map, with the threshold of [kReg]
                eq. 8 in place of the square in [KBR] eqs. 12, 13 (`kernels.off_map`, `likelihood`)
    hypotheses  points elsewhere on the map, another odometry, and an image that says nothing
                compete with the belief by their marginal likelihoods: `hypotheses`
    learn       the odometry's errors, Gaussian given the path of a point: `odometry`
    resample    points in proportion to gamma when few of them carry the weight
    estimate    mean and covariance of the points within `localized_radius` of the highest mode,
                facing as it does, of the kernel mean ([MbKSR] eq. 33, by a Gaussian kernel):
                `estimate`

Two lengths, the bandwidths of k_X (`position_bandwidth`, `heading_bandwidth`), also say how far
the mode reaches, how wide a start is drawn, and from where on an image has news (`new_after`).
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import summarize
from kbr_localization.localization.kbr.parts import FilterParts
from kbr_localization.localization.kbr.starting import drawn_from_image
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.similarity import FullSimilarity, Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
_RESAMPLE_BELOW = 0.5  # of the points are effective


class KernelBayesFilter(FilterParts):
    """The localizer `kbr`: see `Localizer` for its interface."""

    def predict(self, odometry_increment: FloatArray) -> None:
        """
        Mb-KSR: move the points by an increment (3,) in metres and radians.

        The noise of the steps is composed, and drawn when an image comes.
        """
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is not None:
            self.odometry.predict(odometry_increment, self._moving(self.belief))
            self.monitor.predict(odometry_increment)

    def update(self, descriptor: np.ndarray) -> None:
        """KBR: weigh the points by an image's descriptor (d,), compared with the map."""
        nearby = self._in_reach() if self.kernel_map.is_large else None
        self._take_in(self.kernel_map.compare(descriptor, self._global_start, nearby), descriptor)

    def update_similarities(self, similarities: FloatArray) -> None:
        """KBR: weigh the points by the describer's kernel values (n,) of an image and the map."""
        self._take_in(FullSimilarity(similarities), similarities)

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.belief is None:
            return nothing_known(self.diagnostics, self._updated)
        diagnostics = self.diagnostics | self.odometry.described(self.belief)
        diagnostics |= self.monitor.described()
        noise, proof = self.odometry.noise, self.monitor.proof()
        answer = summarize(self.belief, self.config, noise, proof, diagnostics, self._updated)
        covariance = answer.covariance
        if answer.has_pose:
            # the images say where on the map the robot is; the map may itself lie elsewhere
            covariance = covariance + self.kernel_map.uncertainty_at(answer.pose)
        return replace(answer, covariance=covariance, odometry=self.odometry.learnt)

    def _take_in(self, compared: Similarity, image: np.ndarray) -> None:
        way = self.gate.metres
        self.gate.restart()
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = compared.best
        if self.monitor.is_frozen(image, way):
            self.diagnostics['frozen_images'] += 1
            return
        self._updated = True
        seen = self.likelihood.centring.of(compared)
        self.hypotheses.see(seen)
        if self._global_start:
            self._start(seen)
        elif self.belief is not None:
            self._weigh(self.belief, seen, way)

    def _start(self, seen: Similarity) -> None:
        """Global start: draw points where the image could be, weigh them, keep the usual many."""
        size = _START_FACTOR * self.config.points
        born = drawn_from_image(self.likelihood, seen, size, self.rng)
        self.odometry.begin([born])
        # without outliers: the points were drawn where this image says, and stand for nothing else
        posterior = self.hypotheses.weigh(born, seen, outlier_rate=0.0)
        self.monitor.start()
        self.belief = posterior.belief.resampled(self.config.points, self.rng)
        self._global_start = False
        self.regularisation.begin()

    def _weigh(self, prior: Belief, seen: Similarity, way: float) -> None:
        """Take in an image, `way` metres after the last: all steps but the estimate."""
        # predict: the noise of the steps since the last image
        noise, confirmed = self.odometry.noise, self.confirmation.confirmed
        self.odometry.disperse(self._beliefs(prior), self.rng, learn=confirmed)
        spread = self.regularisation.apply(prior, confirmed, self.rng)
        # update
        posterior = self.hypotheses.weigh(prior, seen)
        belief = self.belief = posterior.belief
        # hypotheses
        found = self.monitor.update(prior, posterior, seen, np.diag(noise) + spread, way)
        # learn
        if confirmed:
            self.odometry.pool(belief)
        if self.monitor.reliable:
            self.odometry.keep(belief)
        # resample, here or elsewhere
        if found is not None:
            self._recover(belief, found)
        elif belief.effective_size() < _RESAMPLE_BELOW * len(belief.points):
            self.belief = belief.resampled(self.config.points, self.rng)

    def _recover(self, belief: Belief, found: Belief) -> None:
        """Take over what was found elsewhere."""
        self.hypotheses.exchange(belief)
        self.belief = found.resampled(self.config.points, self.rng)
        self.odometry.begin([self.belief])
        self.confirmation.begin_elsewhere()
        self.regularisation.begin()
        self.diagnostics['recoveries'] += 1
        self.monitor.check.follow(self.belief)
