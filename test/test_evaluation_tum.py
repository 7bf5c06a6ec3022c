from pathlib import Path
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import DatasetError, EvaluationError
from kbr_localization.evaluation import read_tum, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.tum import (
    read_detailed,
    with_details,
    write_detailed,
)
from kbr_localization.trajectory import LATEST_S, Trajectory
import numpy as np
import pytest


def wavy_run(count=50, noise=0.0):
    rng = np.random.default_rng(1)
    poses = np.stack(
        [0.2 * np.arange(count), np.sin(0.1 * np.arange(count)), 0.3 * np.arange(count)], axis=1
    )
    stamps = 1_152_212_857_193_444_001 + 407_000_123 * np.arange(count, dtype=np.int64)
    return Trajectory(stamps, poses + noise * rng.normal(size=poses.shape))


def test_a_trajectory_comes_back_from_its_file_with_stamps_to_the_nanosecond(tmp_path):
    run = wavy_run()
    write_tum(tmp_path / 'run.tum', run)
    back = read_tum(tmp_path / 'run.tum')
    np.testing.assert_array_equal(back.stamps_ns, run.stamps_ns)
    np.testing.assert_allclose(back.poses[:, :2], run.poses[:, :2], atol=1e-9)
    turned = np.exp(1j * back.poses[:, 2]) / np.exp(1j * run.poses[:, 2])
    np.testing.assert_allclose(turned, 1, atol=1e-8)


@given(
    stamp=st.integers(0, LATEST_S * 10**9 - 1),
    scale=st.floats(0.1, 10),
    heading=st.floats(-3.1, 3.1),
    tilt=st.floats(-1, 1),
)
def test_a_tilted_or_unnormalized_quaternion_gives_its_yaw(
    tmp_path_factory, stamp, scale, heading, tilt
):
    yaw = np.array([np.cos(heading / 2), 0, 0, np.sin(heading / 2)])
    # the body rolls about its own x axis after the yaw
    roll_w, roll_x = np.cos(tilt / 2), np.sin(tilt / 2)
    w, z = yaw[0], yaw[3]
    quaternion = scale * np.array([w * roll_x, z * roll_x, z * roll_w, w * roll_w])
    path = tmp_path_factory.mktemp('tum') / 'one.tum'
    fields = ' '.join(f'{value:.12f}' for value in quaternion)
    path.write_text(f'{stamp // 10**9}.{stamp % 10**9:09d} 1 2 3 {fields}\n')
    back = read_tum(path)
    assert back.stamps_ns[0] == stamp
    np.testing.assert_allclose(back.poses[0], [1, 2, heading], atol=1e-6)


BAD_LINES = [
    ('1.0 0 0 0 0 0 0', 'expected 8 numbers'),
    ('2.0 0 0 zero 0 0 0 1', 'expected numbers'),
    ('1.0 0 0 0 0 0 0 0', 'the sender left it unset'),
    ('1.0 nan 0 0 0 0 0 1', 'expected a finite pose'),
    ('1.0 0 1e300 0 0 0 0 1', 'expected a finite pose'),
    ('1.0 0 0 0 0 0 1e300 1e300', 'expected a finite unit quaternion'),
    ('1e400 0 0 0 0 0 0 1', 'expected a time in'),
    ('-1 0 0 0 0 0 0 1', 'expected a time in'),
    ('\x89PNG\x00', 'expected 8 numbers'),
]


@pytest.mark.parametrize(('line', 'why'), BAD_LINES)
def test_a_line_that_is_no_pose_is_skipped_and_counted(tmp_path, line, why):
    path = tmp_path / 'broken.tum'
    path.write_text(f'# a comment\n\n{line}\n')
    with pytest.raises(DatasetError, match=f'no line can be used: line 3: .*{why}'):
        read_tum(path)
    path.write_text(f'2.0 1 0 0 0 0 0 1\n{line}\n1.0 0 0 0 0 0 0 1\n2.0 9 0 0 0 0 0 1\n')
    found = read_tum(path)
    assert found.poses.tolist() == [[0, 0, 0], [1, 0, 0]]
    bad, repeated = found.skipped
    assert bad.startswith('bad line in broken.tum (the first: line 2: ') and why in bad
    assert (repeated, found.skipped[bad]) == ('repeated stamp in broken.tum', 1)


def test_evo_ape_reads_the_files_and_agrees_about_the_error(tmp_path):
    pytest.importorskip('evo', reason='evo is not installed')
    reference, estimate = wavy_run(), wavy_run(noise=0.05)
    write_tum(tmp_path / 'reference.tum', reference)
    write_tum(tmp_path / 'estimate.tum', estimate)
    command = [Path(sys.executable).with_name('evo_ape'), 'tum', 'reference.tum', 'estimate.tum']
    output = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, env={'HOME': tmp_path}
    ).stdout
    rmse = float(re.search(r'rmse\s+(\S+)', output).group(1))
    assert rmse == pytest.approx(
        run_metrics(run_errors(reference, estimate))['position_rmse_m'], abs=2e-6
    )


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
    run = detailed(wavy_run())
    write_detailed(tmp_path / 'run.tum', run)
    back = with_details(read_tum(tmp_path / 'run.tum'), tmp_path / 'run.csv')
    np.testing.assert_allclose(back.covariances, run.covariances)
    np.testing.assert_allclose(back.confidences, run.confidences, atol=1e-6)
    np.testing.assert_allclose(back.seconds, run.seconds, atol=1e-6)
    np.testing.assert_array_equal(back.updated, run.updated)
    assert back.statuses == run.statuses


def test_details_of_a_pose_that_is_skipped_are_skipped_too(tmp_path):
    run = detailed(wavy_run())
    write_detailed(tmp_path / 'run.tum', run)
    lines = (tmp_path / 'run.tum').read_text().splitlines()
    lines[3] = lines[3].rsplit(' ', 4)[0] + ' 0 0 0 0'
    (tmp_path / 'run.tum').write_text('\n'.join(lines))
    back = read_detailed(tmp_path / 'run.tum')
    kept = np.arange(len(run)) != 2
    np.testing.assert_allclose(back.covariances, run.covariances[kept])
    assert back.statuses == tuple(np.array(run.statuses)[kept])


def test_details_of_another_trajectory_are_refused(tmp_path):
    write_detailed(tmp_path / 'run.tum', detailed(wavy_run()))
    run = wavy_run()
    for other in (wavy_run(count=51), Trajectory(run.stamps_ns + 1, run.poses)):
        with pytest.raises(EvaluationError, match='localize again'):
            with_details(other, tmp_path / 'run.csv')


def test_a_foreign_csv_is_refused(tmp_path):
    (tmp_path / 'run.csv').write_text('a,b\n1,2\n')
    with pytest.raises(EvaluationError, match='expected the columns stamp_ns'):
        with_details(wavy_run(), tmp_path / 'run.csv')
