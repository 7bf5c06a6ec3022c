"""
Monitoring of a belief by every image: its place, the map, the odometry and the camera.

A belief is left for another place where that is likelier, and one that is reliable, with most of
it at one place, where that is as likely as has to be for *localized*: between the images of a
sparse map another place may look more like them than the robot's own for a few metres. 0.99 in
place of 0.9 does the same on 48 rendered drives; 0.9 for every belief makes starts longer, and
after an odometry that was grossly wrong it keeps a place that this has led to.
"""

from __future__ import annotations

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import Proof
from kbr_localization.localization.kbr.hypotheses import Hypotheses, new_after, Posterior
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.map_fit import MapFit
from kbr_localization.localization.kbr.odometry_check import OdometryCheck
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np


class Monitor:
    """
    What may be wrong about a belief, tested by every image.

    `hypotheses`: the robot is elsewhere on the map; their `confirmation`: the images speak for the
    belief's place. `fit`: the map is of another building. `check`: the odometry is grossly wrong.
    `is_frozen`: the camera repeats one image.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        statistics: MapStatistics,
        config: KbrConfig,
        rng: np.random.Generator,
    ) -> None:
        self.hypotheses = Hypotheses(likelihood, statistics, config, rng)
        self.confirmation = self.hypotheses.confirmation
        self.fit = MapFit(statistics)
        self.check = OdometryCheck(self.hypotheses)
        self.forget()

    def forget(self) -> None:
        """Know nothing of a belief that is about to start."""
        self.hypotheses.forget()
        self.check.forget()
        self.fit.forget()
        self._moved = self._weighed = False
        self._last_image: np.ndarray | None = None

    def predict(self, increment: FloatArray) -> None:
        """Follow the odometry by an increment (3,)."""
        self._moved |= bool(np.any(increment))
        self.check.predict(increment)
        self.hypotheses.impostors.predict(increment)

    def is_frozen(self, image: np.ndarray, way: float) -> bool:
        """
        Whether an image is the last one again, to the last bit, though the robot has moved.

        `image`: its descriptor, of any shape, or its kernel vector (n,). `way`: metres since then.
        """
        # a copy: who calls may write the next image into the same array
        before, self._last_image = self._last_image, np.array(image)
        frozen = before is not None and self._moved and np.array_equal(image, before)
        if frozen:
            new = new_after(way, self.hypotheses.config)
            self.confirmation.see(0.0, new)
            self.hypotheses.facing.see(0.0, new)
            self._moved = False
        return bool(frozen)

    def start(self) -> None:
        """Take note of a global start by an image."""
        self._weighed = True

    def update(
        self,
        prior: Belief,
        posterior: Posterior,
        seen: Similarity,
        variances: FloatArray,
        way: float,
    ) -> Belief | None:
        """
        Weigh the hypotheses against a belief by an image; see `Hypotheses.update`.

        Returns the points that are to take the belief's place, or None.

        `variances`: (3,) along, across and in heading, by which the points of the belief were
        spread before it: by the noise of the motion since the last update, or anew. `way`: metres
        since then.
        """
        self.check.disperse(variances)
        sighting = self.hypotheses.update(prior, posterior, seen, way)
        on_map = self.hypotheses.at_mode * self.hypotheses.coverage > 0.5
        kept = self.reliable and on_map
        needed = max(self.hypotheses.config.localized_mass, 0.5) if kept else 0.5
        found = self.hypotheses.cohorts.found if self.hypotheses.elsewhere > needed else None
        self._moved = False
        likelihood = self.check.see(seen, posterior.likelihood, posterior.belief)
        best = int(seen.candidates[np.argmax(seen.at(seen.candidates))])
        self.fit.see(float(np.log(likelihood)), self.hypotheses.weight, best, sighting)
        # an image that says nothing of the place makes a given pose no surer
        self._weighed |= bool(self.hypotheses.informative.responsibility > 0.5)
        return found

    @property
    def reliable(self) -> bool:
        """Whether images speak for the place, and not against the odometry."""
        return self.confirmation.confirmed and not self.check.refuted

    def proof(self) -> Proof:
        """Return what status and covariance of an answer depend on beside the points."""
        return Proof(
            1.0 - self.hypotheses.elsewhere,
            self.reliable,
            self.hypotheses.facing.mean if self._weighed else None,
            self.hypotheses.likelihood.spacing,
            self.hypotheses.likelihood.cross_track,
            off_map=self.fit.refuted,
        )

    def described(self) -> dict[str, float]:
        """Return the numbers behind `proof` by name, for diagnostics."""
        return {
            'elsewhere': self.hypotheses.elsewhere,
            'odometry_wrong': self.check.wrong,
            'evidence': self.confirmation.total,
            'evidence_limit': self.confirmation.limit,
            'log_likelihood': self.confirmation.mean,
            'facing_log_likelihood': self.hypotheses.facing.mean,
            'map_log_likelihood': self.fit.mean,
            'map_confirmed': float(self.fit.confirmed),
            'informative': self.hypotheses.informative.probability,
        }
