"""Regions of so many standard deviations."""

from scipy import stats


def sigma_region(sigmas: float, freedom: int) -> float:
    """
    Return the squared Mahalanobis distance at the rim of a k sigma region.

    Such a region holds as much probability as k standard deviations of one Gaussian variable,
    whatever its degrees of freedom: 2 for a position, 1 for a heading.
    """
    return float(stats.chi2.ppf(stats.chi2.cdf(sigmas**2, 1), freedom))
