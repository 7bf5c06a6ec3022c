"""
Where an image comes from: the belief's place, elsewhere on the map, or nothing that the map shows.

With i the probability that an image shows a place of the map and says where it is, c the fraction
of the belief that the map knows and r how many times as likely the image is there as under the
uniform law on the map (`likelihood.Match`), an image has the marginal likelihood

    E = i r + 1 - i c

under a belief, in units of an image that says nothing: a belief in a gap of the map is excused by
its own low coverage. The belief and the points that look elsewhere compete by it. As images nearby
share errors, E is raised to the power 1 - exp(-d / h) for an image d metres after the last one,
which is what is new in it for a kernel of poses of bandwidth h (`new_after`). Places that look
alike do so for many images, so one of a camera that has few counts no more than one after half a
bandwidth (without that bound 1 to 3% more of the frames of photographs by night are wrong). A
robot is carried with a small probability per metre. The rate was chosen on
photographs by day and night (`benchmarks.photographs`) and on rendered drives
(`benchmarks.recovery_bench`) together: between finding a carried robot within 5 m and leaving a
right belief for a place that looks alike. A belief with little evidence is left more easily
(`Confirmation.doubt`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief, OTHER_WAY, weighted_mean
from kbr_localization.localization.kbr.cohorts import Cohorts, UsualLikelihood
from kbr_localization.localization.kbr.confirmation import Confirmation, RecentMean
from kbr_localization.localization.kbr.estimate import mode_of
from kbr_localization.localization.kbr.impostors import Impostors, Sighting
from kbr_localization.localization.kbr.informative import Informative, margin, other_places
from kbr_localization.localization.kbr.likelihood import Likelihood, Match
from kbr_localization.localization.kbr.starting import drawn_from_image
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_SOUGHT = 4  # images that they are drawn about, of a map that is searched by its index
_HALF = 0.5  # of the belief on the map, or of the likelihood of an image that says nothing
_MOST_NEW = 0.5  # bandwidths of way that an image counts for, at most, as evidence of elsewhere


@dataclass(frozen=True)
class Posterior:
    """
    A `belief` weighed by an image; its marginal likelihood E and the `match` before that.

    `facing`: E with the ratio to places that face as the points do in place of r.
    """

    belief: Belief
    likelihood: float
    facing: float
    match: Match


class Hypotheses:
    """
    The belief against the hypothesis that the robot is elsewhere.

    `cohorts`: points that look elsewhere than at the belief's place. `here`, `coverage`: the
    marginal likelihood E of the last image under the belief, and the fraction c of this that the
    map covers; `new`: what was new in it. `facing`: log E of the last images if the belief's
    heading were known (`Posterior.facing`). `at_mode`: the part of the belief after the last image
    that is within `localized_radius` of its highest mode, facing as it does.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        statistics: MapStatistics,
        config: KbrConfig,
        rng: np.random.Generator,
    ) -> None:
        self.likelihood, self.config, self.rng = likelihood, config, rng
        self.informative = Informative(statistics)
        self.confirmation = Confirmation(statistics)
        self.facing = RecentMean()
        self.cohorts = Cohorts(config)
        self.impostors = Impostors(config)
        self.forget()

    def forget(self) -> None:
        """Start with nothing learnt and no alternatives."""
        self.informative.forget()
        self.confirmation.forget()
        self.facing.forget()
        self.cohorts.forget()
        self.impostors.forget()
        self.here, self.coverage, self.new, self.at_mode = 1.0, 0.0, 0.0, 1.0
        self._driven_off = False

    @property
    def alternatives(self) -> Belief | None:
        """Return the points that look elsewhere, if there are any."""
        return self.cohorts.points

    @property
    def elsewhere(self) -> float:
        """Return the posterior probability of being where they are."""
        return self.cohorts.elsewhere

    @property
    def weight(self) -> float:
        """Return what the last image counts as evidence: how far it is covered, times its news."""
        return self.new * self.coverage

    def exchange(self, belief: Belief) -> None:
        """
        Let the points elsewhere be believed: those of the belief look elsewhere from now on.

        They keep its posterior probability. A belief that was left in a gap of the map for a place
        that looks alike is found again by the first images of its own.
        """
        self.cohorts.exchange(belief, self.rng)
        self._driven_off = False
        self.facing.forget()

    def follow(self, likelihood: Likelihood) -> None:
        """Go on with that of a map that has more images at its end."""
        if likelihood.is_whole != self.likelihood.is_whole:
            self.impostors.forget()  # a place weighs something else in an image (`Place`)
        self.likelihood = likelihood

    def see(self, similarity: Similarity) -> None:
        """Take note of an image before any belief is weighed by it."""
        self.informative.see(margin(self.likelihood.poses, similarity, self.config))

    def weigh(
        self, belief: Belief, similarity: Similarity, outlier_rate: float | None = None
    ) -> Posterior:
        """
        Weigh a belief by an image, which shows its place or says nothing.

        The weight of a point with the factor f of the rule is multiplied by

            i r (f + o) / (1 + o) + 1 - i c,

        whose mean under the belief is E; r and c are those of the belief. `outlier_rate`: that of
        the configuration unless it is given. o is such a part of the factor of the best point; of
        a confirmed belief, which is at one place, also of what another place has: an image that is
        like that one says little of where in this one the robot is.
        """
        match = self.likelihood.match(belief.points, belief.weights, similarity)
        i = self.informative.probability
        rate = self.config.outlier_rate if outlier_rate is None else outlier_rate
        best = float(match.factors.max(initial=0.0))
        if self.confirmation.confirmed:
            best = max(best, match.best_on_map * self._best_of_other_places(belief, similarity))
        floor = rate * best
        place = (match.factors + floor) / (1.0 + floor)
        shown = i * match.likelihood_ratio
        nothing = 1.0 - i * match.coverage
        facing = i * match.facing_ratio + nothing
        return Posterior(belief.reweighed(shown * place + nothing), shown + nothing, facing, match)

    def _best_of_other_places(self, belief: Belief, similarity: Similarity) -> float:
        """Return the largest k_Y of an image at a place that is not the belief's; at most 1."""
        place = weighted_mean(belief.points, belief.weights[np.newaxis])[0]
        known = similarity.known
        away = known[other_places(self.likelihood.poses[known], place, self.config)]
        values = self.likelihood.image_kernel(similarity.at(away), similarity.best)
        return float(values.max(initial=0.0))

    def likely_at(
        self, points: FloatArray, similarity: Similarity
    ) -> tuple[FloatArray, FloatArray]:
        """
        Return the marginal likelihood E of an image at points (m, 3), and their c: (m,), (m,).

        Each has the r and c of its own place, where `weigh` has their means under a belief.
        """
        ratios, covered = self.likelihood.ratios(points, similarity)
        i = self.informative.probability
        return np.asarray(i * ratios + 1.0 - i * covered), covered

    def update(
        self, prior: Belief, posterior: Posterior, similarity: Similarity, way: float
    ) -> Sighting:
        """
        Weigh what looks elsewhere against the belief by an image, after so many metres of way.

        `prior`, `posterior`: the belief before and after the image (`weigh`). Returns the image
        among the impostors.
        """
        before = prior.resampled(self.cohorts.size, self.rng).odometry
        here, match, i = posterior.likelihood, posterior.match, self.informative.probability
        self.here, self.coverage = here, match.coverage
        self.informative.learn(match)
        self.new = new_after(way, self.config)
        seen = self.likelihood.seen(similarity)
        sighting = self.impostors.see(seen, match, i)
        self.confirmation.see(float(np.log(here)), self.weight, sighting)
        self.facing.see(float(np.log(posterior.facing)), self.weight)
        if self.config.carried_rate == 0.0:
            return sighting
        self._follow_off_the_map(way)
        way = way_of_update(way, self.config)
        self._join(self._born(similarity, before), way)
        power = new_after(min(way, _MOST_NEW * self.config.position_bandwidth), self.config)
        assert self.alternatives is not None
        likely, covered = self.likely_at(self.alternatives.points, similarity)
        usual = UsualLikelihood(self.confirmation.mean, self.confirmation.reference)
        self.cohorts.weigh(likely, covered, here, power, usual, self.rng)
        mode = mode_of(posterior.belief, self.config)
        self.cohorts.leave_out(mode)
        at_mode = posterior.belief.within(mode, self.config.localized_radius, OTHER_WAY)
        self.at_mode = float(posterior.belief.weights[at_mode].sum())
        return sighting

    def _follow_off_the_map(self, way: float) -> None:
        """
        Take note of whether the belief has been driven off the map, by an image after so much way.

        It has where the last image that told, while the map showed its place, spoke for that. One
        that leaves the map with images that contradict it, or all at once, may have been carried.
        Of a belief that is only half on the map little contradicts: E is never below 1 - c.
        """
        if self.coverage >= _HALF:
            spoken = self.here >= 1.0 or (self._driven_off and self.here >= _HALF)
            self._driven_off = spoken and self.confirmation.confirmed
        elif way > self.config.position_bandwidth + self.config.update_min_d:
            self._driven_off = False

    def _born(self, similarity: Similarity, odometry: FloatArray) -> Belief:
        born = drawn_from_image(self.likelihood, similarity, self.cohorts.size, self.rng, _SOUGHT)
        born.odometry = odometry  # wherever it is, the robot is the same
        return born

    def _join(self, born: Belief, way: float) -> None:
        """Let the robot have been carried with the hazard of the way, or never have been here."""
        carried = happened(self.config.carried_rate, way, self.config)
        hazard = max(carried, self.confirmation.doubt)
        unmapped = (1.0 - self.coverage) * self._driven_off
        self.cohorts.join(born, hazard, unmapped, way)


def new_after(way: float, config: KbrConfig) -> float:
    """Return what an image says that another one did not, so many metres before: 0 to 1."""
    return 1.0 - float(np.exp(-way / config.position_bandwidth))


def way_of_update(way: float, config: KbrConfig) -> float:
    """Return the metres that an update counts; a turn that lets an image in is as much."""
    return max(way, config.update_min_d)


def happened(rate: float, way: float, config: KbrConfig) -> float:
    """Return the probability that what has this rate, per metre, happened since an update."""
    return 1.0 - float(np.exp(-rate * way_of_update(way, config)))
