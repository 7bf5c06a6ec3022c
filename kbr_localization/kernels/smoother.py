"""
Forward-backward smoothing: kernel means of every state given all observations of a run.

[KBR] section 4.3 names smoothing beside filtering; the backward recursion is
p(x_t | y_1..T) = int p(x_t | x_t+1, y_1..t) p(x_t+1 | y_1..T) dx_t+1, and its inner law is Bayes'
rule with the filter's belief as the prior and the transition as the likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import as_generator, NoMassError, require
from kbr_localization.kernels.embedding import Embedding
from kbr_localization.kernels.filters import KernelBayesFilter
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.monte_carlo import MonteCarloModel
import numpy as np
from numpy.typing import ArrayLike

E = TypeVar('E', bound=Embedding)


@dataclass(frozen=True, eq=False)
class KernelBayesSmoother:
    """
    Smoother for a filter: forward with the filter, backward with Bayes' rule on transitions.

    `forward`: any KernelBayesFilter; `backward`: the rule of pairs (X_i, X'_i) with x in the place
    of the state and x' in that of the observation, so that its delta is that of C_X'X'.
    Transitions with controls need pairs of that control. Source: [KBR] section 4.3.
    """

    forward: KernelBayesFilter
    backward: KernelBayesRule

    def __post_init__(self) -> None:
        require('forward', self.forward, KernelBayesFilter, 'a KernelBayesFilter')
        require('backward', self.backward, KernelBayesRule, "a KernelBayesRule of (x, x')")

    @classmethod
    def from_model(
        cls,
        forward: KernelBayesFilter,
        model: AdditiveNoiseModel | MonteCarloModel,
        epsilon: float,
        delta: float,
        method: str = 'squared',
        rng: np.random.Generator | int = 0,
    ) -> KernelBayesSmoother:
        """
        Smoother whose transitions start at the filter's training states and are drawn.

        `epsilon`, `delta`, `method`: of the backward rule, see KernelBayesRule.
        """
        require('forward', forward, KernelBayesFilter, 'a KernelBayesFilter')
        kinds = (AdditiveNoiseModel, MonteCarloModel)
        require('model', model, kinds, 'an AdditiveNoiseModel or a MonteCarloModel')
        rule, generator = forward.bayes_rule, as_generator('rng', rng)
        x_next = (
            model.sample(rule.x)
            if isinstance(model, MonteCarloModel)
            else model.sample(rule.x, generator)
        )
        kernel = rule.kernel_x
        backward = KernelBayesRule(kernel, kernel, rule.x, x_next, epsilon, delta, method)
        return cls(forward, backward)

    def smooth(self, beliefs: Sequence[E]) -> list[E | KernelMean]:
        """
        Kernel means of x_t given y_1..T, from those given y_1..t that the filter returned.

        Any embeddings will do for beliefs; all that is returned but the last, which is as it was
        given, is a KernelMean. Where Bayes' rule finds no mass the filter's belief stands.
        """
        if not isinstance(beliefs, list | tuple) or not beliefs:
            raise KernelError(
                f'beliefs: expected the list that KernelBayesFilter.run returns, got '
                f'{type(beliefs).__name__}: filter the run first'
            )
        smoothed: list[E | KernelMean] = [beliefs[-1]]
        for belief in beliefs[-2::-1]:
            smoothed.append(self._step(belief, smoothed[-1]))
        return smoothed[::-1]

    def run(
        self,
        observations: ArrayLike,
        controls: Sequence[Any] | None = None,
        prior: Embedding | None = None,
    ) -> list[KernelMean]:
        """Filter and smooth a sequence; arguments as in `KernelBayesFilter.run`."""
        return self.smooth(self.forward.run(observations, controls, prior))

    def _step(self, belief: E, following: Embedding) -> E | KernelMean:
        try:
            return self.backward.posterior_given(belief, following).normalised()
        except NoMassError:
            return belief
