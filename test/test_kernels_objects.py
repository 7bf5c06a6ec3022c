"""Precomputed Gram matrices and Python objects go wherever points go."""

from fractions import Fraction

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    GaussianKernel,
    hsic,
    incomplete_cholesky,
    KernelBayesFilter,
    KernelBayesRule,
    KernelKalmanFilter,
    KernelMean,
    LearntTransition,
    NonparametricModel,
    ObjectKernel,
    PrecomputedKernel,
    spectrum,
)
from kbr_localization.kernels.filters import means
import numpy as np
import pytest

PLAIN = GaussianKernel(0.5, normalised=False)
WORDS = ['banana', 'bananas', 'ananas', 'cherry', 'cherries', 'sherry']


def test_a_precomputed_kernel_gives_the_weights_of_the_kernel():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 25, 2))
    table = PrecomputedKernel(PLAIN.gram(y))
    points = table.points()
    by_table = KernelBayesRule(PLAIN, table, x[:20], points[:20], 1e-3, 1e-4)
    by_kernel = KernelBayesRule(PLAIN, PLAIN, x[:20], y[:20], 1e-3, 1e-4)
    prior = KernelMean.of_sample(PLAIN, x[:5])
    expected = by_kernel.posterior_weights(prior, y[20:])
    np.testing.assert_allclose(by_table.posterior_weights(prior, points[20:]), expected, atol=1e-9)
    np.testing.assert_array_equal(table.diagonal(points), np.ones(25))


def test_a_row_that_is_not_in_the_table_is_refused():
    table = PrecomputedKernel(np.eye(3))
    for bad in ([[3.0]], [[-1.0]], [[0.5]]):
        with pytest.raises(KernelError, match=r'x: expected numbers of rows or handles.* 0\.\.2'):
            table.cross_gram(bad, [[0.0]])
    with pytest.raises(KernelError, match='gram: expected a symmetric matrix'):
        PrecomputedKernel([[1.0, 0.0], [0.5, 1.0]])


def test_the_spectrum_kernel_is_a_cosine_of_counts():
    assert spectrum('banana', 'banana') == pytest.approx(1.0)
    # ban, ana twice, nan against ana twice, nan, nas
    assert spectrum('banana', 'ananas') == pytest.approx((4 + 1) / np.sqrt(6 * 6))
    assert spectrum('ab', 'banana') == spectrum('cherry', 'banana') == 0.0
    # what is too short for a substring is like itself only
    assert spectrum('ab', 'ab') == spectrum('', '') == 1.0
    assert spectrum('ab', 'ba') == spectrum('ab', 'a') == 0.0
    gram = ObjectKernel(spectrum).gram([*WORDS, 'ab', 'a', 'ab'])
    assert np.linalg.eigvalsh(gram).min() > -1e-12
    assert np.all(gram.diagonal() == pytest.approx(1.0))


def test_strings_are_states_and_observations():
    strings = ObjectKernel(spectrum)
    number = [[1.0], [1.2], [0.9], [5.0], [5.2], [4.9]]
    model = NonparametricModel(strings, PLAIN, WORDS, number, 1e-3)
    assert model.at('anana').normalised().mean()[0] == pytest.approx(1.0, abs=0.3)
    rule = KernelBayesRule(PLAIN, strings, number, WORDS, 1e-3, 1e-4)
    posterior = rule.posterior(KernelMean.of_sample(PLAIN, number), 'cherri')
    assert posterior.normalised().mean()[0] == pytest.approx(5.0, abs=0.3)
    inverse = KernelBayesRule(strings, PLAIN, WORDS, number, 1e-3, 1e-4)
    word = inverse.posterior(KernelMean.of_sample(strings, WORDS), [5.05]).heaviest()
    assert strings.objects([word])[0] in ('cherry', 'cherries', 'sherry')


def test_filters_take_strings():
    rng = np.random.default_rng(0)
    season = np.array([np.cos(0.5 * np.arange(120)), np.sin(0.5 * np.arange(120))]).T
    words = ['spring', 'summer', 'autumn', 'winter']
    quarter = ((0.5 * np.arange(120) / (np.pi / 2)) % 4).astype(int)
    seen = [words[q if rng.uniform() < 0.8 else rng.integers(4)] for q in quarter]
    kernel = GaussianKernel(0.1, normalised=False)
    strings = ObjectKernel(lambda a, b: spectrum(a, b, 2))
    rule = KernelBayesRule(kernel, strings, season[:80], seen[:80], 1e-4, 1e-2, 'pKBR')
    transition = LearntTransition(kernel, season[:79], season[1:80], 1e-4)
    found = means(KernelBayesFilter(transition, rule).run(seen[80:]))
    assert np.mean((found[5:] - season[85:]) ** 2) < 0.1
    low = NonparametricModel(strings, kernel, seen, season, 1e-2, tolerance=1e-9)
    dense = NonparametricModel(strings, kernel, seen, season, 1e-2)
    np.testing.assert_allclose(low.at('summer').mean(), dense.at('summer').mean(), atol=1e-6)


def test_means_of_objects_add_and_compare():
    strings = ObjectKernel(spectrum)
    fruit = KernelMean.of_sample(strings, WORDS[:3])
    drink = KernelMean.of_sample(strings, WORDS[3:])
    assert fruit.mmd(drink) > 1.5 * fruit.mmd(KernelMean.of_sample(strings, WORDS[:2]))
    assert (fruit - fruit).norm() == pytest.approx(0.0, abs=1e-8)
    assert hsic(strings, PLAIN, WORDS, [[0.0]] * 3 + [[3.0]] * 3) > 0.05


def test_lists_of_objects_go_wherever_points_go():
    strings = ObjectKernel(spectrum)
    fruit = KernelMean.of_sample(strings, WORDS[:3])
    np.testing.assert_allclose(fruit(WORDS), strings.gram(WORDS)[:, :3].mean(axis=1))
    assert set(strings.objects(fruit.herd(3, WORDS[1:]))) <= set(WORDS[1:3])
    gram = incomplete_cholesky(strings, WORDS[:5], 1e-12)
    new = gram.features(strings, WORDS[:5], WORDS[5:])
    np.testing.assert_allclose(gram.factor @ new.T, strings.cross_gram(WORDS[:5], WORDS[5:]))
    x = np.arange(6.0)[:, np.newaxis]
    kalman = KernelKalmanFilter(strings, PLAIN, WORDS, WORDS[1:] + WORDS[:1], x, 1e-3, 0.1)
    assert kalman.start(['ananas']).kernel_mean().heaviest() == strings.encode_one('x', 'ananas')


def test_controls_may_be_words():
    x, turn = np.linspace(-2.0, 2.0, 40)[:, np.newaxis], ['left', 'right'] * 20
    step = np.array([[-1.0], [1.0]] * 20)
    kernel = ObjectKernel(lambda a, b: float(a == b))
    transition = LearntTransition(PLAIN, x, x + step, 1e-6, turn, kernel)
    belief = KernelMean.of_sample(PLAIN, [[0.0]])
    for word, expected in (('left', -1.0), ('right', 1.0)):
        found = transition.predict(belief, np.array([[-1.0], [0.0], [1.0]]), word)
        assert np.argmax(found) == expected + 1


def test_objects_that_cannot_be_hashed_and_equal_ones():
    kernel = ObjectKernel(lambda a, b: float(len(set(a) & set(b))))
    handles = kernel.encode('x', [[1, 2], [2, 3], [1, 2]])
    np.testing.assert_array_equal(kernel.gram(handles), [[2, 1, 2], [1, 2, 1], [2, 1, 2]])
    shared = ObjectKernel(lambda a, b: float(a * b))
    np.testing.assert_array_equal(
        shared.encode('x', [Fraction(1, 2), Fraction(2, 4), Fraction(1, 3)])[:, 0], [0, 0, 1]
    )


def test_a_tuple_with_a_list_in_it_is_an_object():
    kernel = ObjectKernel(lambda a, b: float(a[0] == b[0] and a[1] == b[1]))
    items = [('a', [1]), ('b', (1,)), ('a', [1]), ('b', (1,))]
    np.testing.assert_array_equal(kernel.encode('x', items)[:, 0], [0, 1, 2, 1])
    np.testing.assert_array_equal(kernel.gram(items), kernel.cross_gram(items, items))
    np.testing.assert_array_equal(kernel.gram(items)[0], [1, 0, 1, 0])


def test_a_single_string_is_no_list_of_letters():
    with pytest.raises(KernelError, match='x: expected a list of objects, got str'):
        ObjectKernel(spectrum).gram('banana')
    with pytest.raises(KernelError, match='points: expected at least one object'):
        KernelMean.of_sample(ObjectKernel(spectrum), [])
