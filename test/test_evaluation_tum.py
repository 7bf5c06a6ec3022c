from pathlib import Path
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import DatasetError, EvaluationError
from kbr_localization.evaluation import read_tum, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.tum import check_details, read_detailed, write_detailed
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


def test_lines_that_are_no_pose_are_skipped_and_counted(tmp_path):
    path = tmp_path / 'broken.tum'
    good = '2.0 1 0 0 0 0 0 1\n1.0 0 0 0 0 0 0 1\n2.0 9 0 0 0 0 0 1\n'
    path.write_text(f'{good}1.0 0 0 0 0 0 0\n2.0 0 0 zero 0 0 0 1\n1.0 0 0 0 0 0 0 0\n')
    found = read_tum(path)
    assert found.poses.tolist() == [[0, 0, 0], [1, 0, 0]]
    bad, repeated = found.skipped
    assert bad.startswith('bad line in broken.tum (the first: line 4: expected 8 numbers')
    assert (found.skipped[bad], repeated) == (3, 'repeated stamp in broken.tum')
    path.write_text('# a comment\n\n1.0 nan 0 0 0 0 0 1\n')
    with pytest.raises(DatasetError, match=r'no line can be used: line 3: .*a finite pose'):
        read_tum(path)


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
    text = details.read_text()
    details.write_text(text.replace('seconds', 'minutes'))
    with pytest.raises(EvaluationError, match='expected the columns stamp_ns'):
        read_detailed(path)
    details.write_text('a,b\n1,2\n')
    assert read_detailed(path).covariances is None
    assert 'not of `kbr localize`' in caplog.text
    with pytest.raises(EvaluationError, match='would be overwritten'):
        check_details(details)
