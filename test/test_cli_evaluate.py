from dataclasses import replace
import json

from command import assert_one_line, invoke
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation import reference_trajectory, write_tum
from kbr_localization.localization.map.build import build_map
from kbr_localization.trajectory import Trajectory
import numpy as np
import pytest

KEYS = {
    'position_rmse_m',
    'position_median_m',
    'heading_median_deg',
    'lost_fraction',
    'within_0.25m_2deg',
    'within_0.5m_5deg',
    'within_5m_10deg',
    'frames',
}


@pytest.fixture
def run_and_estimate(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=10)
    truth = reference_trajectory(open_dataset(run))
    estimate = Trajectory(truth.stamps_ns, truth.poses + np.array([0.3, 0, 0]))
    write_tum(tmp_path / 'estimate.tum', estimate)
    return run, tmp_path / 'estimate.tum'


def evaluate(*arguments):
    result = invoke('evaluate', *arguments)
    assert result.returncode == 0, result.stderr
    return result


def test_json_is_all_that_stands_on_stdout(run_and_estimate):
    result = json.loads(evaluate(*run_and_estimate, '--json').stdout)
    assert result.keys() >= KEYS
    assert result['position_rmse_m'] == pytest.approx(0.3, abs=1e-6)
    assert result['within_0.25m_2deg'] == 0
    assert result['within_0.5m_5deg'] == 1
    assert result['frames'] == 10
    assert result['coverage_2sigma'] is None


def test_the_table_shows_the_same_numbers(run_and_estimate):
    output = evaluate(*run_and_estimate).stdout
    rows = dict(line.split('│') for line in output.splitlines() if '│' in line)
    numbers = {name.strip(): value.strip() for name, value in rows.items()}
    assert numbers['position_rmse_m'] == '0.300'
    assert numbers['coverage_2sigma'] == '-'


def test_frames_without_a_reference_pose_are_told(run_and_estimate):
    run, estimate = run_and_estimate
    places = run / 'localization' / 'places.lst'
    lines = places.read_text().splitlines(keepends=True)
    for number in (0, 4, 5):
        name, label = lines[number].split()
        stamp = name[: name.index('_x')] + '.jpeg'
        (run / 'std_cam' / name).rename(run / 'std_cam' / stamp)
        lines[number] = f'{stamp} {label}\n'
    places.write_text(''.join(lines))
    result = evaluate(run, estimate, '--json')
    assert '3 of 10 frames have no reference pose' in result.stderr
    assert json.loads(result.stdout)['frames'] == 7


def test_the_tolerance_decides_which_stamps_belong_together(run_and_estimate, tmp_path):
    run, _ = run_and_estimate
    truth = reference_trajectory(open_dataset(run))
    write_tum(tmp_path / 'late.tum', Trajectory(truth.stamps_ns + 50_000_000, truth.poses))
    evaluate(run, tmp_path / 'late.tum', '--tolerance', '1e300')
    endless = invoke('evaluate', run, tmp_path / 'late.tum', '--tolerance', 'inf')
    assert_one_line(endless, '--tolerance inf: expected a finite number of seconds')
    result = evaluate(run, tmp_path / 'late.tum', '--json', '--tolerance', '0.06')
    assert json.loads(result.stdout)['position_rmse_m'] == pytest.approx(0, abs=1e-6)
    refused = invoke('evaluate', run, tmp_path / 'late.tum')
    assert_one_line(refused, 'no estimate within 0.01 s')


def test_details_beside_the_trajectory_give_the_coverage(run_and_estimate):
    from kbr_localization.evaluation import read_tum
    from kbr_localization.evaluation.tum import write_detailed

    run, path = run_and_estimate
    estimate = read_tum(path)
    count = len(estimate)
    write_detailed(
        path,
        Trajectory(
            estimate.stamps_ns,
            estimate.poses,
            covariances=np.tile(np.diag([0.2**2, 0.2**2, 0.1**2]), (count, 1, 1)),
            confidences=np.ones(count),
            statuses=('localized',) * count,
            updated=np.ones(count, dtype=bool),
            seconds=np.ones(count),
        ),
    )
    result = json.loads(evaluate(run, path, '--json').stdout)
    # 0.3 m is 1.5 standard deviations; the ellipse that holds 68.3% reaches to 1.515
    assert (result['coverage_1sigma'], result['coverage_2sigma']) == (1.0, 1.0)
    assert result['heading_coverage_1sigma'] == 1.0


def test_a_trajectory_named_csv_is_not_taken_for_its_own_details(run_and_estimate):
    run, estimate = run_and_estimate
    lines = [line.replace(' ', ',') for line in estimate.read_text().splitlines()[1:]]
    path = estimate.with_name('other.csv')
    path.write_text('\n'.join(lines))
    result = json.loads(evaluate(run, path, '--json').stdout)
    assert result['position_rmse_m'] == pytest.approx(0.3, abs=1e-6)


def test_recall_leaves_broken_images_out_and_says_so(run_and_estimate, tmp_path):
    run, estimate = run_and_estimate
    build_map([open_dataset(run)]).save(tmp_path / 'map.h5')
    min((run / 'std_cam').iterdir()).write_bytes(b'no image')
    result = evaluate(run, estimate, '--json', '--map', tmp_path / 'map.h5')
    assert json.loads(result.stdout)['recall_frames'] == 9
    assert '1 of 10 images cannot be used' in result.stderr


def test_a_recall_that_cannot_be_told_hides_nothing_else(run_and_estimate, tmp_path):
    run, estimate = run_and_estimate
    built = build_map([open_dataset(run)])
    replace(built, poses=built.poses + np.array([50.0, 0.0, 0.0])).save(tmp_path / 'map.h5')
    result = evaluate(run, estimate, '--map', tmp_path / 'map.h5', '--json')
    assert 'recall: no map image lies within 1 m' in result.stderr
    assert json.loads(result.stdout).keys() >= KEYS
