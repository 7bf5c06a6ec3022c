"""Lines that outliers do not bend, and how well they are known."""

from kbr_localization.vision.robust_line import robust_line
import numpy as np

TRUE = np.array([0.5, -2.0])


def test_outliers_do_not_bend_the_line():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(200, 2))
    values = columns @ TRUE + 0.01 * rng.normal(size=200)
    values[:60] += 3.0
    found, _ = robust_line(columns, values)
    np.testing.assert_allclose(found, TRUE, atol=0.01)
    assert np.abs(np.linalg.lstsq(columns, values, rcond=None)[0] - TRUE).max() > 0.05


def test_the_information_tells_how_far_the_line_is_off():
    rng = np.random.default_rng(1)
    missed = []
    for _ in range(200):
        columns = rng.normal(size=(80, 2))
        found, information = robust_line(columns, columns @ TRUE + 0.3 * rng.normal(size=80))
        missed.append((found - TRUE) @ information @ (found - TRUE))
    # of a law of chi square with two degrees of freedom; the weights leave some information out
    assert 1.0 < np.mean(missed) < 2.5


def test_values_that_are_all_but_exact_give_a_finite_line():
    columns = np.ones((5, 1))
    found, information = robust_line(columns, np.full(5, 2.0))
    np.testing.assert_allclose(found, 2.0)
    assert np.isfinite(information).all()
