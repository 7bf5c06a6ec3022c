"""Every experiment runs at a tiny size; stored verdicts follow from the stored numbers."""

import csv
import importlib
import json
from pathlib import Path
import re

import numpy as np
import pytest
from state_space import LinearGaussian

ROOT = Path(__file__).parents[1]

if not (ROOT / 'experiments').is_dir():
    pytest.skip('the folder experiments/ is not installed', allow_module_level=True)

pytest.importorskip('matplotlib')

# only now: the folder and matplotlib are there
common, claims, records, classical, room, experiments = (
    importlib.import_module(f'experiments.{name}')
    for name in ('common', 'claims', 'records', 'classical', 'room', '__main__')
)
GaussianPairs = importlib.import_module('experiments.gaussian_pairs').GaussianPairs
STATES = (claims.HOLDS, claims.NOISE, claims.FAILS, claims.NOT_RUN)
PNG = b'\x89PNG\r\n\x1a\n'


def rows_in(path):
    with path.open(encoding='utf-8') as file:
        return list(csv.DictReader(file))


def run(name, out, *options):
    experiments.main([name, '--size', 'tiny', '--out', str(out), *options])


@pytest.mark.slow
@pytest.mark.parametrize('name', experiments.NAMES)
def test_experiment_writes_csv_figure_and_line(name, tmp_path):
    run(name, tmp_path, '--seeds', '0,1')
    results = tmp_path / 'results'
    rows = rows_in(results / f'{name}.csv')
    values = [float(row['mean']) for row in rows]
    assert len(rows) > 1
    assert np.all(np.isfinite(values))
    assert np.all(np.array(values) >= 0)
    assert (results / f'{name}.png').read_bytes().startswith(PNG)
    line = json.loads((results / f'{name}.json').read_text(encoding='utf-8'))
    assert line['size'] == 'tiny'
    assert all(one['state'] in STATES for one in line['claims'])
    assert re.fullmatch(r'seeds 0–1, \d+ runs', line['completed'])
    readme = (tmp_path / 'README.md').read_text(encoding='utf-8')
    assert f'[{line["source"]}](results/{name}.json)' in readme


@pytest.mark.slow
@pytest.mark.parametrize('name', experiments.NAMES)
def test_committed_verdicts_are_those_of_the_committed_records(name, tmp_path):
    """What is judged again from the records of all five seeds is what is stored."""
    stored = ROOT / 'experiments' / 'results'
    experiment = importlib.import_module(f'experiments.{name}').EXPERIMENT
    size = experiment.sizes['reduced']
    tasks = records.tasks_of(size)
    known = records.stored(stored / 'records' / f'{name}_reduced.json', tasks)
    assert list(known.done) == tasks
    outcome = experiment.judge(known, size)
    line = json.loads((stored / f'{name}.json').read_text(encoding='utf-8'))
    assert [vars(one) for one in outcome.claims] == line['claims']
    common.write_rows(tmp_path / 'rows.csv', outcome.rows)
    assert (tmp_path / 'rows.csv').read_text() == (stored / f'{name}.csv').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    'parts', [[('0', '--jobs', '2'), ('0,1', '--resume')], [('0,1', '--jobs', '2')]]
)
def test_an_interrupted_run_and_processes_find_the_same_numbers(tmp_path, parts):
    run('kbr_fig2', tmp_path / 'whole', '--seeds', '0,1')
    for seeds, *options in parts:
        run('kbr_fig2', tmp_path / 'parts', '--seeds', seeds, *options)
    for name in ('kbr_fig2.json', 'kbr_fig2.csv'):
        whole, other = ((tmp_path / folder / 'results' / name) for folder in ('whole', 'parts'))
        assert whole.read_text() == other.read_text()


@pytest.mark.parametrize(
    ('differences', 'state'),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.0], claims.HOLDS),
        ([1.0, -0.9, 1.1, -0.8, 0.1], claims.NOISE),
        ([-1.0, -0.9, 0.1, -0.8, 0.1], claims.FAILS),
        ([1.0], claims.NOISE),
        ({'n = 1': [1.0, 1.1], 'n = 2': [-1.0, -1.1]}, claims.FAILS),
        ([], claims.NOT_RUN),
    ],
)
def test_a_claim_needs_its_mean_and_its_standard_error(differences, state):
    assert claims.claim('a below b', differences).state == state


def test_closed_form_posterior_agrees_with_importance_sampling():
    rng = np.random.default_rng(0)
    problem = GaussianPairs.random(1, rng)
    v_xx, v_yx, v_yy = (float(block[0, 0]) for block in problem.blocks)
    states = problem.sample_prior(rng, 400_000)[:, 0]
    y = 1.5
    variance = v_yy - v_yx**2 / v_xx
    weights = np.exp(-0.5 * (y - 1.0 - v_yx / v_xx * states) ** 2 / variance)
    expected = weights @ states / weights.sum()
    assert problem.posterior_means(np.array([[y]]))[0, 0] == pytest.approx(expected, abs=0.02)


F, H = np.array([[0.9, 0.3], [-0.2, 0.8]]), np.array([[1.0, 0.5]])
Q, R = np.array([[0.2, 0.05], [0.05, 0.1]]), np.array([[0.3]])
START = np.array([1.0, -1.0]), np.eye(2)
MATRICES = classical.GaussianStateSpaceModel(F, Q, H, R, *START)
FUNCTIONS = classical.GaussianStateSpaceModel(lambda x: x @ F.T, Q, lambda x: x @ H.T, R, *START)


@pytest.mark.parametrize(
    ('method', 'model'),
    [('kalman', MATRICES), ('extended', FUNCTIONS), ('unscented', FUNCTIONS)],
)
def test_gaussian_filters_are_exact_on_a_linear_model(method, model):
    truth = LinearGaussian(F, Q, H, R, *START)
    _, y = truth.simulate(30, np.random.default_rng(0))
    means, covariances = classical.classical_filter(method, model, y)
    expected, expected_covariances, *_ = truth.kalman(y)
    np.testing.assert_allclose(means, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(covariances, expected_covariances, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('method', 'expected'), [('extended', 4.0), ('unscented', 4.25)])
def test_the_unscented_transform_knows_the_mean_of_a_square_and_the_extended_one_does_not(
    method, expected
):
    """E x^2 = m^2 + P for x ~ N(2, 1/4), where observations say nothing."""
    one = np.eye(1)
    model = classical.GaussianStateSpaceModel(
        lambda x: x**2, one, lambda x: x, 1e12 * one, np.array([2.0]), 0.25 * one
    )
    means, _ = classical.classical_filter(method, model, np.zeros((2, 1)))
    assert means[1, 0] == pytest.approx(expected, rel=1e-6)
