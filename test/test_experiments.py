"""Every experiment runs at a tiny size and writes its CSV, figure and line of the table."""

import csv
import importlib
import json
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]

if not (ROOT / 'experiments').is_dir():
    pytest.skip('the folder experiments/ is not installed', allow_module_level=True)

pytest.importorskip('matplotlib')

# only now: the folder and matplotlib are there
common, experiments = (
    importlib.import_module(f'experiments.{name}') for name in ('common', '__main__')
)
GaussianPairs = importlib.import_module('experiments.gaussian_pairs').GaussianPairs
Mixture = importlib.import_module('experiments.mbksr_fig3').Mixture
furnished, looking_at = (
    getattr(importlib.import_module('experiments.room'), name)
    for name in ('furnished', 'looking_at')
)

PNG = b'\x89PNG\r\n\x1a\n'


def rows_in(path):
    with path.open(encoding='utf-8') as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize('name', experiments.NAMES)
def test_experiment_writes_csv_figure_and_line(name, tmp_path):
    importlib.import_module(f'experiments.{name}').main(['--size', 'tiny', '--out', str(tmp_path)])
    results = tmp_path / 'results'
    rows = rows_in(results / f'{name}.csv')
    values = [float(row['mse' if 'mse' in row else 'mean']) for row in rows]
    assert len(rows) > 1
    assert np.all(np.isfinite(values))
    assert np.all(np.array(values) >= 0)
    assert (results / f'{name}.png').read_bytes().startswith(PNG)
    line = json.loads((results / f'{name}.json').read_text(encoding='utf-8'))
    assert line['size'] == 'tiny'
    assert line['claims']
    readme = (tmp_path / 'README.md').read_text(encoding='utf-8')
    assert f'results/{name}.png' in readme
    assert line['ours'] in readme


@pytest.mark.parametrize('name', experiments.NAMES)
def test_committed_results_are_complete_and_small(name):
    results = ROOT / 'experiments' / 'results'
    readme = (ROOT / 'experiments' / 'README.md').read_text(encoding='utf-8')
    line = json.loads((results / f'{name}.json').read_text(encoding='utf-8'))
    assert line['ours'] in readme
    assert line['size'] != 'tiny'
    assert (results / f'{name}.png').stat().st_size < 150_000
    assert rows_in(results / f'{name}.csv')


def test_same_seed_same_numbers(tmp_path):
    for folder in ('first', 'second'):
        importlib.import_module('experiments.kbr_fig2').main(
            ['--size', 'tiny', '--seed', '3', '--out', str(tmp_path / folder)]
        )
    first, second = (tmp_path / f / 'results' / 'kbr_fig2.csv' for f in ('first', 'second'))
    assert first.read_text(encoding='utf-8') == second.read_text(encoding='utf-8')


def test_table_command_assembles_what_is_there(tmp_path):
    results = tmp_path / 'results'
    results.mkdir()
    claims = [{'text': 'a below b', 'holds': True}, {'text': 'b below c', 'holds': False}]
    line = {
        'source': '[KBR] Fig. 9',
        'paper': '1.0',
        'ours': '1.1',
        'settings': 'as printed',
        'claims': claims,
        'size': 'full',
        'seed': 0,
        'seconds': 1.0,
    }
    (results / 'nine.json').write_text(json.dumps(line), encoding='utf-8')
    (tmp_path / 'README.md').write_text(f'# Head\n\n{common.START}\n{common.END}\n\ntail\n')
    command = [sys.executable, '-m', 'experiments', '--table', '--out', str(tmp_path)]
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    text = (tmp_path / 'README.md').read_text(encoding='utf-8')
    assert text.startswith('# Head')
    assert text.endswith('tail\n')
    assert text.count('[KBR Fig. 9](results/nine.png)') == 1
    assert 'holds: a below b. **does not hold: b below c**' in text


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
