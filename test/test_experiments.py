"""Every experiment runs at a tiny size and writes its CSV, figure and line of the table."""

import csv
import dataclasses
import importlib
import json
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

ROOT = Path(__file__).parents[1]

if not (ROOT / 'experiments').is_dir():
    pytest.skip('the folder experiments/ is not installed', allow_module_level=True)

pytest.importorskip('matplotlib')

# only now: the folder and matplotlib are there
common, claims, records, report, experiments = (
    importlib.import_module(f'experiments.{name}')
    for name in ('common', 'claims', 'records', 'report', '__main__')
)
GaussianPairs = importlib.import_module('experiments.gaussian_pairs').GaussianPairs
Mixture = importlib.import_module('experiments.mbksr_fig3').Mixture
furnished, looking_at = (
    getattr(importlib.import_module('experiments.room'), name)
    for name in ('furnished', 'looking_at')
)

STATES = (claims.HOLDS, claims.NOISE, claims.FAILS, claims.NOT_RUN)
NAMED = ('whole', 'parts')
FOLDERS = ('', 'times', 'timed')
PNG = b'\x89PNG\r\n\x1a\n'


def rows_in(path):
    with path.open(encoding='utf-8') as file:
        return list(csv.DictReader(file))


def run(name, out, *options):
    arguments = ['--size', 'tiny', '--out', str(out), *options]
    importlib.import_module(f'experiments.{name}').main(arguments)


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
    assert line['completed'].startswith('seeds 0–1')
    readme = (tmp_path / 'README.md').read_text(encoding='utf-8')
    assert f'results/{name}.png' in readme
    assert line['ours'] in readme


@pytest.mark.parametrize('name', experiments.NAMES)
def test_committed_results_are_complete_and_small(name):
    results = ROOT / 'experiments' / 'results'
    readme = (ROOT / 'experiments' / 'README.md').read_text(encoding='utf-8')
    for stem in (name, f'{name}_full'):
        if stem != name and not (results / f'{stem}.json').exists():
            assert 'What has not been run at full size' in readme
            continue
        line = json.loads((results / f'{stem}.json').read_text(encoding='utf-8'))
        assert line['ours'] in readme
        assert line['completed'] in readme
        assert line['size'] == ('full' if stem.endswith('_full') else 'reduced')
        assert (results / f'{stem}.png').stat().st_size < 150_000
        assert rows_in(results / f'{stem}.csv')


@pytest.mark.parametrize('name', experiments.NAMES)
def test_committed_verdicts_are_those_of_the_committed_records(name, tmp_path):
    """What is judged again from the records of all five seeds is what is stored."""
    stored = ROOT / 'experiments' / 'results'
    experiment = importlib.import_module(f'experiments.{name}').EXPERIMENT
    size = experiment.sizes['reduced']
    store = records.Store(stored, name, 'reduced')
    tasks = records.tasks_of(size)
    known = store.load(tasks)
    assert sorted(known) == sorted(task.key for task in tasks)
    outcome = experiment.judge(records.Records([known[task.key] for task in tasks]), size)
    line = json.loads((stored / f'{name}.json').read_text(encoding='utf-8'))
    assert [vars(one) for one in outcome.claims] == line['claims']
    common.write_rows(tmp_path / 'rows.csv', outcome.rows)
    assert (tmp_path / 'rows.csv').read_text() == (stored / f'{name}.csv').read_text()


@pytest.mark.parametrize('name', ['kbr_fig2', 'kbr_fig3', 'kreg_fig1'])
def test_a_second_run_leaves_every_file_that_is_kept_as_it_was(name, tmp_path):
    contents = []
    for _ in range(2):
        run(name, tmp_path, '--seeds', '0,1')
        kept = [p for p in sorted(tmp_path.rglob('*')) if p.is_file() and 'times' not in p.parts]
        contents.append({path: path.read_bytes() for path in kept})
    assert len(contents[0]) == 5  # README, records, and three of the result
    assert contents[0] == contents[1]


def test_an_interrupted_run_goes_on_and_ends_as_an_uninterrupted_one(tmp_path, monkeypatch):
    run('kbr_fig2', tmp_path / 'whole', '--seeds', '0,1')
    run('kbr_fig2', tmp_path / 'parts', '--seeds', '0')
    module = importlib.import_module('experiments.kbr_fig2')
    seen = []

    def counted(rng, **arguments):
        seen.append(arguments['d'])
        return module.trial(rng, **arguments)

    monkeypatch.setattr(
        module, 'EXPERIMENT', dataclasses.replace(module.EXPERIMENT, trial=counted)
    )
    run('kbr_fig2', tmp_path / 'parts', '--seeds', '0,1', '--resume')
    assert seen == [2, 8]
    whole, parts = (
        (tmp_path / folder / 'results' / 'kbr_fig2.json').read_text() for folder in NAMED
    )
    assert whole == parts


def test_what_is_stored_of_other_seeds_stays_when_a_run_goes_on(tmp_path):
    size = importlib.import_module('experiments.kbr_fig2').EXPERIMENT.sizes['reduced']
    store = records.Store(tmp_path / 'results', 'kbr_fig2', 'reduced')
    both = records.tasks_of(size, (0, 1))
    run('kbr_fig2', tmp_path, '--seeds', '0')
    before = store.load(both)
    run('kbr_fig2', tmp_path, '--seeds', '1', '--resume')
    after = store.load(both)
    assert len(after) == 2 * len(before) and after.items() >= before.items()
    run('kbr_fig2', tmp_path, '--seeds', '1')
    assert len(store.load(both)) == len(before)


def test_what_is_missing_of_a_run_is_told(tmp_path):
    run('kbr_fig2', tmp_path, '--minutes', '0', '--resume')
    assert not (tmp_path / 'results').exists()
    task = records.Task(3, 0, (('n', 100),))
    tasks = [*records.tasks_of(records.Size(1, {'n': (100, 200)}), seeds=(0, 3))]
    done = report.completed(records.Records([records.Record(task, {}, {})]), tasks)
    assert done == 'n = 100: seed 3, 1 of 2 runs; n = 200: not run'


@pytest.mark.parametrize('size', common.SIZES)
def test_times_and_what_is_made_of_them_have_files_of_their_own(size, tmp_path):
    store = records.Store(tmp_path, 'nine', size)
    assert 'times' in store.seconds_path.parts
    written = [tmp_path / folder / f'{common.stem("nine", size)}.json' for folder in FOLDERS]
    assert store.seconds_path not in written
    assert store.values_path not in written


def test_processes_find_the_same_numbers(tmp_path):
    for folder, jobs in (('whole', '1'), ('parts', '2')):
        run('kbr_fig2', tmp_path / folder, '--seeds', '0', '--jobs', jobs)
    first, second = ((tmp_path / f / 'results' / 'kbr_fig2.csv').read_text() for f in NAMED)
    assert first == second


def test_runs_in_cold_format_that_are_absent_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('KBR_COLD_RUNS', str(tmp_path))
    module = importlib.import_module('experiments.mbksr_fig6')
    module.main(['--full', '--out', str(tmp_path)])
    assert 'skipped' in capsys.readouterr().out
    monkeypatch.delenv('KBR_COLD_RUNS')
    assert 'KBR_COLD_RUNS' in module.missing(module.EXPERIMENT.sizes['full'])


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


def test_the_test_of_a_claim_is_students():
    values = np.random.default_rng(0).normal(0.4, 1.0, 12)
    for shift in (-0.3, 0.0, 0.3):
        p_value = scipy.stats.ttest_1samp(values + shift, 0.0, alternative='greater').pvalue
        assert claims.claim('', values + shift).holds == (p_value < claims.LEVEL)


def test_a_page_names_first_what_does_not_hold(tmp_path):
    results = tmp_path / 'results'
    results.mkdir()
    stored = [claims.claim('a below b', [1.0, 1.1]), claims.claim('b below c', [-1.0, -1.1])]
    line = {
        'name': 'nine',
        'source': '[KBR] Fig. 9',
        'paper': '1.0',
        'ours': '1.1',
        'settings': 'as printed',
        'claims': [vars(one) for one in stored],
        'size': 'reduced',
        'completed': 'seeds 0–4, 5 runs',
    }
    for stem, size in (('nine', 'reduced'), ('nine_full', 'full')):
        (results / f'{stem}.json').write_text(json.dumps({**line, 'size': size}), encoding='utf-8')
    (tmp_path / 'README.md').write_text(f'# Head\n\n{report.START}\n{report.END}\n\ntail\n')
    command = [sys.executable, '-m', 'experiments', '--table', '--out', str(tmp_path)]
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    text = (tmp_path / 'README.md').read_text(encoding='utf-8')
    assert text.startswith('# Head')
    assert text.endswith('tail\n')
    assert text.count('[full](results/nine_full.png)') == 1
    lost = '- [KBR] Fig. 9: b below c (reduced: does not hold, full: does not hold).'
    assert text.index(lost) < text.index('## [KBR] Fig. 9')
    assert '| b below c | **does not hold** (-1.05 ± 0.05, 2 runs) | **does not hold**' in text


@pytest.mark.parametrize('name', ['c small', 'c = 1'])
def test_errors_of_the_rates_are_those_of_the_rule_written_out(name):
    """Few states, so that the textbook formula with all n points is the reference."""
    module = importlib.import_module('experiments.convergence')
    constants, n, rate = module.CONSTANTS[name], 60, 0.15
    law, prior, likelihood = module.tables(np.random.default_rng(0))
    np.testing.assert_allclose(likelihood.sum(axis=1), 1.0)
    np.testing.assert_allclose([law.sum(), prior.sum()], 1.0)
    found = module.bayes_errors(np.random.default_rng(1), n, constants, rate)
    expected = rates_reference(module, np.random.default_rng(1), n, constants, rate)
    assert found['at y'] == pytest.approx(expected[0], rel=1e-6)
    assert found['L2'] == pytest.approx(expected[1], rel=1e-6)


def rates_reference(module, rng, n, constants, rate):
    law, prior, likelihood = module.tables(np.random.default_rng(int(rng.integers(2**32))))
    x = rng.choice(5, n, p=law)
    y = np.minimum((np.cumsum(likelihood, axis=1)[x] < rng.random(n)[:, None]).sum(axis=1), 4)
    u = rng.choice(5, n, p=prior)
    k = np.exp(-0.5 * (np.arange(5.0)[:, None] - np.arange(5.0)) ** 2)
    epsilon, delta = constants[0] * n ** (-1 / 3), constants[1] * n**-rate
    mu = np.linalg.solve(k[np.ix_(x, x)] + n * epsilon * np.eye(n), k[np.ix_(x, u)].mean(axis=1))
    lg = np.diag(mu) @ k[np.ix_(y, y)]
    weights = lg @ np.linalg.solve(lg @ lg + delta * np.eye(n), np.diag(mu) @ k[y])
    joint = prior[:, None] * likelihood
    difference = k[2, x] @ weights - k[2] @ joint / joint.sum(axis=0)
    return abs(difference[3]), np.sqrt(joint.sum(axis=0) @ difference**2)


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


def test_embedding_of_a_mixture_agrees_with_a_large_sample():
    rng = np.random.default_rng(1)
    law = Mixture.random(rng)
    points = rng.uniform(-2.0, 2.0, (5, 2))
    sample = law.sample(rng, 200_000)
    kernel = law.embedding().kernel
    expected = kernel.cross_gram(points, sample).mean(axis=1)
    np.testing.assert_allclose(law.embedding()(points), expected, atol=0.01)


def test_renderer_shows_the_table_in_front_of_the_camera():
    scene = furnished()
    position = np.array([0.0, -6.0, 1.0])
    image = scene.render(position, looking_at(position, np.array([0.0, 0.0, -1.85])), 31)
    red, green, blue = image[15, 15]
    assert red > green > blue
    np.testing.assert_allclose(image[15, 15] / red, np.array([0.7, 0.45, 0.2]) / 0.7, rtol=1e-9)
    away = scene.render(position, looking_at(position, np.array([0.0, -9.0, 1.0])), 31)
    assert not np.allclose(away, image)
