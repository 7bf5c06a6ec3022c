"""
Points that look for the robot elsewhere than at the belief's place.

They stay in cohorts, by the image about which they were drawn: if they were resampled together,
the descendants of one look-alike place would soon replace all others, those at the right place
among them.

A cohort that explains the images may do so for two reasons: the robot is there, carried or never
where it was believed to be; or it has driven off the map, to where it looks like there. A
building of which the map shows a part often goes on like it, and no single image tells the two
apart. So the points of a cohort share their mass among the hypotheses

    carried     the robot is where they are,
    alike       it is where it is believed to be, off the map, and sees what they would,
    alone       (without points) it is there, and what it sees is like nothing on the map.

An image multiplies the first two by its likelihood at the points, the last by that under the
belief. Of *alone* the part off the map becomes *alike* once in `_ALIKE_EVERY` metres, and is so
for `_ALIKE_FOR`, both exponential; where the map shows the place it cannot be.

How likely images are tells *carried* from *alike* (`UsualLikelihood`): at the robot's place log E
is what it lately was at the belief's own, in a likeness halfway between that and what it is at the
likeliest wrong places of the map.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief, OTHER_WAY
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

_COHORT = 30  # points of one
_COHORTS = 10  # images from which such points are kept
_ALIKE_EVERY, _ALIKE_FOR = 100.0, 10.0
"""
Metres off the map after which it looks like a place of the map, and for which it does, on average.

Chosen on halves of rendered offices, tried on those of others (`benchmarks.half_mapped`); 10, 30
and 300 m, and 5, 20 and 50 m, lose more drives the one way or the other (docs/choices.md).
"""
_VARIANCE = 0.5
"""
Of log E of images at one place, and in a likeness.

At the right places of 16 halves of rendered offices it is .4 to 1, with a median of .7; in their
likenesses log E is 1.4 to 2.8 less on average.
"""


@dataclass(frozen=True)
class UsualLikelihood:
    """Mean log E of images: `right` at the robot's place, `wrong` at the likeliest wrong ones."""

    right: float
    wrong: float

    def carried_log_odds(self, log_likelihood: FloatArray) -> FloatArray:
        """
        Return how many times as probable log E (k,) is of the robot's place as of a likeness, log.

        Both are normal with a variance of `_VARIANCE`. Where images say no more of the right place
        than of a wrong one, they do not tell: 0.
        """
        alike = 0.5 * (min(self.wrong, self.right) + self.right)
        middle = 0.5 * (alike + self.right)
        return np.asarray((self.right - alike) * (log_likelihood - middle) / _VARIANCE)


class Cohorts:
    """
    The points elsewhere and the hypotheses that they stand for.

    `points`: with weights that add up to one, those of *carried* and *alike* together; None
    without any. `mass`: the posterior probability of both.
    """

    def __init__(self, config: KbrConfig) -> None:
        self._config = config
        self.forget()

    def forget(self) -> None:
        """Have no points."""
        self.points: Belief | None = None
        self._of: NDArray[np.intp] = np.zeros(0, dtype=np.intp)  # the number of a point's cohort
        self._carried: FloatArray = np.zeros(0)  # the part of a point's mass that is *carried*
        self.mass = 0.0

    @property
    def size(self) -> int:
        """Return the number of points of a cohort."""
        return _COHORT

    @property
    def elsewhere(self) -> float:
        """Return the posterior probability of *carried*."""
        if self.points is None:
            return 0.0
        return min(self.mass * float(self.points.weights @ self._carried), 1.0)  # but for rounding

    @property
    def found(self) -> Belief | None:
        """Return the points under the hypothesis *carried*."""
        return None if self.points is None else self.points.reweighed(self._carried)

    def exchange(self, belief: Belief, rng: np.random.Generator) -> None:
        """Let the robot be believed elsewhere: the belief becomes the only cohort."""
        self.mass = 1.0 - self.elsewhere
        self.points = belief.resampled(_COHORT, rng)
        self._of, self._carried = np.zeros(_COHORT, dtype=np.intp), np.ones(_COHORT)

    def join(self, born: Belief, hazard: float, unmapped: float, way: float) -> None:
        """
        Let `size` points join as a cohort, after `way` metres.

        They take `hazard` of what is believed, as *carried*, and of that what begins to look like
        a place of the map. `unmapped`: the fraction of the belief that may do so.
        """
        mass = np.zeros(0) if self.points is None else self.mass * self.points.weights
        carried, alike = mass * self._carried, mass * (1.0 - self._carried)
        lasting = unmapped * float(np.exp(-way / _ALIKE_FOR))
        alone = max(1.0 - float(mass.sum()), 0.0) + (1.0 - lasting) * float(alike.sum())
        alike = lasting * alike
        gone = hazard * (alone + float(alike.sum()))
        alone, alike = (1.0 - hazard) * alone, (1.0 - hazard) * alike
        begun = alone * unmapped * (1.0 - float(np.exp(-way / _ALIKE_EVERY)))
        number = int(self._of.max(initial=-1)) + 1
        self._of = np.append(self._of, np.full(_COHORT, number))
        old, new = carried + alike, gone + begun
        parts = np.append(_part(carried, old), np.full(_COHORT, _part(gone, new)))
        self._carried, self.mass = parts, float(old.sum()) + new
        if self.points is None:
            self.points = born
            return
        if old.any():
            self.points.weights = old / old.sum()
        self.points = self.points.joined(born, new / self.mass)

    def weigh(
        self,
        likely: FloatArray,
        covered: FloatArray,
        here: float,
        power: float,
        usual: UsualLikelihood,
        rng: np.random.Generator,
    ) -> None:
        """
        Weigh each cohort by E to that power of an image that the belief explains with E = `here`.

        `likely`, `covered`: (m,) E and c at the points. Each cohort is resampled by itself. Its
        points are of many places, so each has the E of its own place: a few points at the right
        place are not held back by what the image says of the others. The map says nothing of a
        cohort that has left it, for which such a one does not keep its room, however likely it
        was. `usual`: by which what a cohort stands for is told.
        """
        assert self.points is not None
        names, of = np.unique(self._of, return_inverse=True)
        before = np.bincount(of, weights=self.points.weights)
        self.points.weights = self.points.weights * likely
        after = np.bincount(of, weights=self.points.weights)
        there = after / np.maximum(before, 1e-300)
        logs = np.bincount(of, weights=self.points.weights * np.log(np.maximum(likely, 1e-300)))
        sizes = np.bincount(of)
        known = np.bincount(of, weights=covered) / sizes
        carried = np.bincount(of, weights=self._carried) / sizes
        told = power * usual.carried_log_odds(logs / np.maximum(after, 1e-300))
        # the newest stands for the robot anywhere, whatever part of the map was looked at
        there[-1], told[-1] = 1.0, 0.0
        carried = expit(logit(carried) + told)
        odds = self.mass * before * there**power
        chosen = _kept(odds * known)
        odds, total = odds[chosen], float(odds[chosen].sum())
        self.mass = total / (total + (1.0 - self.mass) * here**power)
        self._of = np.repeat(names[chosen], _COHORT)
        self._carried = np.repeat(carried[chosen], _COHORT)
        self.points = self.points.resampled_in_parts(of, chosen, _COHORT, rng)
        self.points.weights = np.repeat(odds / (_COHORT * total), _COHORT)

    def leave_out(self, pose: FloatArray) -> None:
        """
        Take out points at the belief's own place (3,).

        They would explain all that the belief explains, and once the robot is carried away they
        would take the place of cohorts that have found it (`_kept`): those are younger.
        """
        assert self.points is not None
        away = ~self.points.within(pose, self._config.localized_radius, OTHER_WAY)
        self.mass *= float(self.points.weights[away].sum())
        self.points = self.points.among(away) if away.any() else None
        self._of, self._carried = self._of[away], self._carried[away]


def _part(some: FloatArray | float, both: FloatArray | float) -> FloatArray:
    """Return a part of masses of any shape; all of what is nothing."""
    both = np.asarray(both)
    return np.divide(some, both, out=np.ones(both.shape), where=both > 0.0)


def _kept(odds: FloatArray) -> NDArray[np.intp]:
    """Choose cohorts, which are in the order of age: the newest half, the best of the others."""
    old = max(len(odds) - _COHORTS // 2, 0)
    unlikely = max(len(odds) - _COHORTS, 0)
    best = np.argsort(odds[:old])[unlikely:]
    return np.concatenate([np.sort(best), np.arange(old, len(odds))])
