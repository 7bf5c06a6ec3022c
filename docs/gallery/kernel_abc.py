"""A posterior without a likelihood: the g-and-k law, which has quantiles but no density."""

from kbr_localization.kernels import GaussianKernel, KernelABC
import numpy as np

TRUTH = np.array([3.0, 1.0, 2.0, 0.5])  # location, scale, skewness, weight of the tails
LOW, HIGH = np.array([0.0, 0.2, 0.0, 0.0]), np.array([6.0, 3.0, 4.0, 1.0])


def prior(size, rng):
    """Draw parameters (size, 4)."""
    return rng.uniform(LOW, HIGH, size=(size, 4))


def simulate(parameters, rng):
    """Draw 500 numbers for every row of parameters and return what their octiles tell."""
    a, b, g, k = parameters.T[:, :, None]
    z = rng.normal(size=(len(parameters), 500))
    draws = a + b * (1 + 0.8 * np.tanh(0.5 * g * z)) * (1 + z**2) ** k * z
    e1, e2, e3, e4, e5, e6, e7 = np.quantile(draws, np.arange(1, 8) / 8, axis=1)
    spread = e6 - e2
    shape = (e6 + e2 - 2 * e4) / spread, (e7 - e5 + e3 - e1) / spread
    return np.column_stack([e4, np.log(spread), *shape])


observed = simulate(TRUTH[None], np.random.default_rng(7))[0]
kernel_y = GaussianKernel([0.36, 0.36, 0.04, 0.04], normalised=False)
abc = KernelABC(prior, simulate, size=4000, epsilon=1e-5, kernel_y=kernel_y)
posterior = abc.posterior(observed).normalised()
deviation = np.sqrt(np.diag(posterior.covariance()))
names = ('location', 'scale', 'skewness', 'tails')
for row in zip(names, TRUTH, posterior.mean(), deviation, strict=True):
    print('{:<9} truth {:.1f}  posterior {:.2f} +- {:.2f}'.format(*row))
