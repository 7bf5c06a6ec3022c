"""
Whether the odometry moves as the images do, or is of another kind of robot.

A belief that follows an odometry that counts half as far again, or turns the wrong way, is led
away from the images again and again, and is sure in between. `OdometryCalibration` learns what
differs between runs of one robot and cannot tell. So a few points move by an odometry that is
grossly wrong: scaled by at least `_LEAST`, in the way or in the turns, or with the turns to the
other side. They leave the belief with a small probability per metre (`CHANGE_RATE`) and compete
with it by the marginal likelihood of every image: their part is the posterior probability that the
odometry is wrong. While the odometry is right the belief stays where each image is explained, and
these points go astray.
"""

from __future__ import annotations

from kbr_localization.localization.calibration import NAMES, SIZE
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.hypotheses import happened, Hypotheses
from kbr_localization.localization.kbr.odometry import CHANGE_RATE
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_POINTS = 300
_LEAST, _MOST = 1.15, 2.5  # factors by which they are wrong
_FORWARD, _TURN = NAMES.index('forward_scale'), NAMES.index('turn_scale')
_MIRRORED = 2.0  # fraction of the turn that is taken away


class OdometryCheck:
    """
    The belief against the hypothesis that the odometry is grossly wrong.

    `wrong`: the posterior probability of that. `led`: points that move by such an odometry, None
    before the first. Their random numbers are their own, so that the belief keeps its course.
    """

    def __init__(self, hypotheses: Hypotheses) -> None:
        self._hypotheses = hypotheses
        self.forget()

    @property
    def refuted(self) -> bool:
        """Whether it is wrong as surely as a pose has to be to be localized, at least likely."""
        return self.wrong >= max(self._hypotheses.config.localized_mass, 0.5)

    def forget(self) -> None:
        """Start with an odometry that nothing is known against."""
        self._rng = np.random.default_rng(1)
        self.led: Belief | None = None
        self.wrong, self._way = 0.0, np.zeros(2)

    def predict(self, increment: FloatArray) -> None:
        """Take note of an increment (3,); `led` moves with the belief."""
        self._way += np.hypot(increment[0], increment[1]), abs(increment[2])

    def disperse(self, variances: FloatArray) -> None:
        """
        Spread the points by variances (3,), as the belief's.

        Less, and they would be likelier at every image than a belief that is spread at its start.
        """
        if self.led is not None:
            self.led.disperse(variances, self._rng)

    def see(self, similarity: Similarity, here: float, follows: Belief) -> float:
        """
        Weigh the points by an image of which the likelihood under the belief is `here`.

        `follows`: the belief after the image, from which new points set out. Returns the
        likelihood of the image if the odometry may be right or wrong.
        """
        likelihood = here
        if self.led is not None:
            # as the belief: weighed by more, they would keep together and foretell images better
            posterior = self._hypotheses.weigh(self.led, similarity)
            self.led, there = posterior.belief, posterior.likelihood
            likelihood = (1.0 - self.wrong) * here + self.wrong * there
            self.wrong *= there / likelihood
        self._join(follows)
        return likelihood

    def follow(self, found: Belief) -> None:
        """Let the belief have been found elsewhere: some points go on from there as they are."""
        if self.led is None:
            return
        half = _POINTS // 2
        there = found.resampled(half, self._rng)
        there.odometry = self.led.resampled(half, self._rng).odometry
        self.led = self.led.resampled(half, self._rng).joined(there, 0.5)

    def _join(self, belief: Belief) -> None:
        changed = happened(CHANGE_RATE, float(self._way[0]), self._hypotheses.config)
        if changed == 0.0 or not self._way.any():
            return  # has not moved, or only turned, where every turn lets an image in
        fresh = (1.0 - self.wrong) * changed
        in_turns = self._way[1] / self._way.sum()  # so many radians, of these and the metres
        self._way = np.zeros(2)
        self.wrong += fresh - self.wrong * changed  # what slipped may hold again
        share = fresh / self.wrong
        # one at least: a few sets of errors are soon too few, and its weight is what it stands for
        born = belief.resampled(max(round(_POINTS * share), 1), self._rng)
        born.odometry = born.odometry + self._errors(len(born.points), in_turns)
        self.led = born if self.led is None else self.led.joined(born, share)
        crowded = len(self.led.points) > _POINTS * 3 // 2
        if crowded or self.led.effective_size() < _POINTS / 2:
            self.led = self.led.resampled(_POINTS, self._rng)

    def _errors(self, size: int, turns: float) -> FloatArray:
        """Parameters (size, 7) of a grossly wrong odometry, the fraction `turns` in the turns."""
        rng, errors = self._rng, np.zeros((size, SIZE))
        logs = rng.uniform(np.log(_LEAST), np.log(_MOST), size) * rng.choice([-1.0, 1.0], size)
        # wrong turns are too wide, too narrow or to the other side
        in_turns, mirrored = rng.random(size) < turns, rng.random(size) < 1.0 / 3.0
        taken = 1.0 - np.exp(logs)
        errors[:, _FORWARD] = np.where(in_turns, 0.0, taken)
        errors[:, _TURN] = np.where(in_turns, np.where(mirrored, _MIRRORED, taken), 0.0)
        return errors
