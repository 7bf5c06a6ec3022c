"""What is measured of a trajectory, and the files in which it is kept."""

from dataclasses import replace

from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation import read_tum, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.metrics import associate
from kbr_localization.evaluation.tum import check_details, read_detailed, write_detailed
from kbr_localization.trajectory import Trajectory
import numpy as np
import pytest
from scipy.stats import chi2


def straight_run(count=101, step_m=0.5, heading=0.0):
    poses = np.zeros((count, 3))
    poses[:, 0] = step_m * np.arange(count)
    poses[:, 2] = heading
    return Trajectory(np.arange(count, dtype=np.int64) * 400_000_000 + 10**18, poses)


def shifted(reference, offset, frames=slice(None)):
    poses = reference.poses.copy()
    poses[frames] += offset
    return Trajectory(reference.stamps_ns, poses)


def test_association_agrees_with_brute_force():
    rng = np.random.default_rng(3)
    frames = np.sort(rng.integers(0, 10**9, 40))
    estimates = np.sort(rng.integers(0, 10**9, 60))
    result = associate(frames, estimates, 0.02)
    distance = np.abs(frames[:, None] - estimates[None])
    for frame, estimate in enumerate(result):
        if estimate < 0:
            continue
        assert distance[frame, estimate] == distance[frame].min() <= 20_000_000
        rivals = np.flatnonzero(distance.argmin(axis=1) == estimate)
        assert distance[frame, estimate] == distance[rivals, estimate].min()


def test_a_constant_offset_is_the_rmse_and_the_median_because_nothing_is_aligned():
    run = straight_run(heading=np.pi - 0.01)
    turned = [0.3, 0.39, np.radians(4) - 2 * np.pi]
    summary = run_metrics(run_errors(run, shifted(run, turned)))
    expected = {'lost_fraction': 0, 'frames': 101, 'within_0.25m_2deg': 0, 'within_0.5m_5deg': 1}
    expected |= dict.fromkeys(('position_rmse_m', 'position_median_m'), np.hypot(0.3, 0.39))
    expected |= dict.fromkeys(('heading_rmse_deg', 'heading_median_deg'), 4.0)
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


def test_frames_without_an_estimate_are_lost_and_outside_of_every_threshold():
    run = straight_run(count=100)
    half = Trajectory(run.stamps_ns[:40], run.poses[:40])
    summary = run_metrics(run_errors(run, half))
    expected = {'frames': 100, 'frames_without_estimate': 60, 'within_5m_10deg': 0.4}
    expected |= {'lost_fraction': 0.6, 'lost_fraction_once_below_1m': 0.6}
    expected |= {'position_median_m': None, 'position_rmse_m': 0, 'below_1m_after_m': 0}
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    # nor is one that is not finite
    nowhere = shifted(run, np.array([0.0, np.nan, 0.0]), slice(40, None))
    assert run_metrics(run_errors(run, nowhere)) == summary


def test_a_lucky_moment_is_not_enough_and_a_later_loss_counts():
    run = straight_run()
    poses = run.poses.copy()
    poses[[0, 1, 2, 3, 6, 7], 1] = 3.0
    poses[60, 1] = 2.0
    summary = run_metrics(run_errors(run, Trajectory(run.stamps_ns, poses)))
    assert summary['below_1m_after_m'] == pytest.approx(4.0)
    assert summary['lost_fraction_once_below_1m'] == pytest.approx(1 / 93)
    assert summary['rmse_once_below_1m_m'] == pytest.approx(2.0 / np.sqrt(93))
    never = run_metrics(run_errors(run, shifted(run, [0.0, 3.0, 0.0])))
    for name in ('below_1m_after_m', 'rmse_once_below_1m_m', 'lost_fraction_once_below_1m'):
        assert never[name] is None


def with_covariance(scale):
    """Twenty thousand estimates whose errors are drawn from a correlated Gaussian."""
    run = straight_run(count=20_000, step_m=0.01)
    covariance = np.array([[0.04, 0.01, 0.002], [0.01, 0.02, -0.001], [0.002, -0.001, 0.003]])
    errors = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance, len(run))
    stated = np.broadcast_to(scale**2 * covariance, (len(run), 3, 3)).copy()
    return run, Trajectory(run.stamps_ns, run.poses + errors, covariances=stated)


@pytest.mark.parametrize('scale', [1.0, 0.5])
def test_an_honest_covariance_covers_what_a_gaussian_covers_and_is_as_sharp(scale):
    run, trajectory = with_covariance(scale)
    result = run_metrics(run_errors(run, trajectory))
    for prefix, freedom in (('', 2), ('heading_', 1)):
        for sigma, inside in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
            expected = chi2.cdf(scale**2 * chi2.ppf(inside, freedom), freedom)
            found = result[f'{prefix}coverage_{sigma}sigma']
            assert found == pytest.approx(expected, abs=0.01)
    stated = np.sqrt(trajectory.covariances[:, 0, 0] + trajectory.covariances[:, 1, 1])
    distances = np.hypot(*(trajectory.poses - run.poses)[:, :2].T)
    assert result['sharpness'] == pytest.approx(stated.mean() / distances.mean(), rel=1e-6)
    assert 1.12 * scale < result['sharpness'] < 1.27 * scale


def test_unknown_covariances_and_those_of_zero_are_left_out_of_the_coverage():
    run, trajectory = with_covariance(1.0)
    trajectory.covariances[:15_000] = 9999.0 * np.eye(3)
    result = run_metrics(run_errors(run, trajectory))
    assert result['coverage_frames'] == 5_000
    assert result['coverage_2sigma'] == pytest.approx(0.9545, abs=0.02)
    result = run_metrics(run_errors(run, replace(run, covariances=np.zeros((len(run), 3, 3)))))
    assert (result['coverage_frames'], result['sharpness']) == (0, None)


def test_wrong_answers_that_were_called_localized_are_told():
    """Of the answers more than a metre off, those without a frame left out."""
    run = straight_run(6)
    off = np.outer([3.0, 3.0, 3.0, 0.2, 0.2, 0.2], [1, 0, 0])
    words = ('localized', 'uncertain', 'not localized', *['localized'] * 3)
    told = replace(shifted(run, off), statuses=words)
    assert run_metrics(run_errors(run, told))['wrong_called_localized'] == pytest.approx(1 / 3)
    assert run_metrics(run_errors(run, shifted(run, off)))['wrong_called_localized'] is None
    # without an answer to the first two, one of the third alone is wrong
    few = Trajectory(run.stamps_ns[2:], told.poses[2:], statuses=('localized',) * 4)
    assert run_metrics(run_errors(run, few))['wrong_called_localized'] == 1
    right = replace(run, statuses=('localized',) * 6)
    assert run_metrics(run_errors(run, right))['wrong_called_localized'] is None


# files


def wavy_run(count=50):
    poses = np.stack(
        [0.2 * np.arange(count), np.sin(0.1 * np.arange(count)), 0.3 * np.arange(count)], axis=1
    )
    stamps = 1_152_212_857_193_444_001 + 407_000_123 * np.arange(count, dtype=np.int64)
    return Trajectory(stamps, poses)


def test_a_trajectory_comes_back_from_its_file_with_stamps_to_the_nanosecond(tmp_path):
    run = wavy_run()
    write_tum(tmp_path / 'run.tum', run)
    back = read_tum(tmp_path / 'run.tum')
    np.testing.assert_array_equal(back.stamps_ns, run.stamps_ns)
    np.testing.assert_allclose(back.poses[:, :2], run.poses[:, :2], atol=1e-9)
    turned = np.exp(1j * back.poses[:, 2]) / np.exp(1j * run.poses[:, 2])
    np.testing.assert_allclose(turned, 1, atol=1e-8)


def detailed(run):
    count = len(run)
    return Trajectory(
        run.stamps_ns,
        run.poses,
        covariances=np.array([[3.0, 0.1, 0.2], [0.1, 2.0, 0.3], [0.2, 0.3, 1.0]])
        * np.arange(1, count + 1)[:, None, None],
        confidences=np.linspace(0, 1, count),
        statuses=tuple('localized' if i % 2 else 'not localized' for i in range(count)),
        updated=np.arange(count) % 3 == 0,
        seconds=np.linspace(0.01, 0.02, count),
    )


def test_details_come_back_from_the_file_beside_the_trajectory(tmp_path):
    run, path = detailed(wavy_run()), tmp_path / 'run.tum'
    write_detailed(path, run)
    lines = path.read_text().splitlines()
    for kept in (np.arange(len(run)) >= 0, np.arange(len(run)) != 2):
        back = read_detailed(path)
        np.testing.assert_allclose(back.covariances, run.covariances[kept])
        np.testing.assert_allclose(back.confidences, run.confidences[kept], atol=1e-6)
        np.testing.assert_allclose(back.seconds, run.seconds[kept], atol=1e-6)
        np.testing.assert_array_equal(back.updated, run.updated[kept])
        assert back.statuses == tuple(np.array(run.statuses)[kept])
        # those of a pose that is skipped are skipped too
        lines[3] = lines[3].rsplit(' ', 4)[0] + ' 0 0 0 0'
        path.write_text('\n'.join(lines))


def test_details_of_another_trajectory_are_refused_and_a_foreign_csv_is_not_read(tmp_path, caplog):
    path, details = tmp_path / 'run.tum', tmp_path / 'run.csv'
    for other in (wavy_run(count=51), Trajectory(wavy_run().stamps_ns + 1, wavy_run().poses)):
        write_detailed(path, detailed(wavy_run()))
        write_tum(path, other)
        with pytest.raises(EvaluationError, match='localize again'):
            read_detailed(path)
    details.write_text('a,b\n1,2\n')
    assert not len(read_detailed(path).covariances)
    assert 'not from `kbr localize`' in caplog.text
    with pytest.raises(EvaluationError, match='would be overwritten'):
        check_details(details)
