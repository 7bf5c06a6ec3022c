"""Regularised solves: exact when they can be, honest about the ridge when they cannot."""

import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels.kernels import Covariance
from kbr_localization.kernels.linalg import RegularisedCholesky, solve_root_form
import numpy as np
import pytest


def positive_definite(size=30, seed=0):
    a = np.random.default_rng(seed).normal(size=(size, size))
    return a @ a.T / size


@pytest.mark.parametrize('order', ['C', 'F'])
def test_cholesky_solves_and_leaves_its_argument_alone(order):
    gram = np.array(positive_definite(), order=order)
    before, b = gram.copy(), np.ones((30, 2))
    factor = RegularisedCholesky(gram, 0.1)
    expected = np.linalg.solve(before + 0.1 * np.eye(30), b)
    np.testing.assert_allclose(factor.solve(b), expected, rtol=1e-10)
    np.testing.assert_array_equal(gram, before)
    assert factor.ridge == 0.1


def test_a_ridge_is_raised_by_tens_until_the_factorisation_succeeds(caplog):
    gram = np.diag([1.0, 1.0, -1e-8])
    with caplog.at_level(logging.WARNING):
        factor = RegularisedCholesky(gram, 1e-10, name='delta')
    assert factor.ridge == pytest.approx(1e-7)
    assert 'delta raised from 1e-10 to 1e-07' in caplog.text
    residual = (gram + 1e-7 * np.eye(3)) @ factor.solve(np.ones(3))
    np.testing.assert_allclose(residual, 1.0, rtol=1e-10)


def test_an_asymmetric_matrix_is_refused():
    gram = positive_definite()
    gram[2, 7] += 0.1
    for solve in (
        lambda: RegularisedCholesky(gram, 1.0),
        lambda: solve_root_form(gram, 1.0, 0.1, np.ones(30)),
    ):
        with pytest.raises(KernelError, match=r'gram: expected a symmetric matrix.* up to 0\.1:'):
            solve()


@pytest.mark.parametrize('signs', [1.0, np.sign(np.arange(30) - 10.5)])
def test_root_form_is_the_squared_form(signs):
    matrix, b = positive_definite(), np.arange(30.0)
    solution, delta = solve_root_form(matrix, signs, 0.01, b)
    a = np.broadcast_to(signs, 30)[:, np.newaxis] * matrix  # J B
    squared = a @ np.linalg.solve(a @ a + 0.01 * np.eye(30), signs * b)
    np.testing.assert_allclose(solution.real, squared, rtol=1e-8, atol=1e-10)
    assert delta == 0.01


def test_root_form_keeps_digits_that_the_squared_form_loses():
    # one eigenvalue of 1e-9: squared it is below rounding beside 1
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    values = np.array([1.0, 0.5, 0.2, 0.1, 1e-9])
    b = rotation[:, 4]
    solution, _ = solve_root_form((rotation * values) @ rotation.T, 1.0, 1e-18, b)
    exact = values[4] / (values[4] ** 2 + 1e-18)
    assert b @ solution.real == pytest.approx(exact, rel=1e-5)


def test_root_form_raises_a_delta_no_further_than_rounding():
    solution, delta = solve_root_form(np.ones((2, 2)), 1.0, 1e-60, np.ones(2))
    assert 1e-60 < delta < 1e-26
    np.testing.assert_allclose(solution.real, 0.5)


@pytest.mark.parametrize('value', [2.0, [1.0, 2.0], [[1.0, 0.5], [0.5, 2.0]]])
@pytest.mark.parametrize('other', [0.5, [0.1, 0.3], [[1.0, -0.2], [-0.2, 0.7]]])
def test_covariances_add_in_every_form(value, other):
    total = Covariance(value) + Covariance(other)
    expected = Covariance(value).matrix(2) + Covariance(other).matrix(2)
    np.testing.assert_allclose(total.matrix(2), expected)
    assert total.log_det(2) == pytest.approx(np.linalg.slogdet(expected)[1])
    x = np.random.default_rng(0).normal(size=(6, 2))
    np.testing.assert_allclose(total.colour(total.whiten(x)), x, rtol=1e-12)
    np.testing.assert_allclose(
        (total.whiten(x) ** 2).sum(axis=1), np.sum(x @ np.linalg.inv(expected) * x, axis=1)
    )
