"""Rendered runs: their frames, the errors of their odometry, robots drawn at random, files."""

from dataclasses import replace
import json

from command import invoke
from kbr_localization import se2
from kbr_localization.datasets import Dataset, OdometryTrack, open_dataset
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_track
from kbr_localization.errors import DatasetError
from kbr_localization.simulation import run as rendered
from kbr_localization.simulation.robot import random_robot, Robot, RobotCamera
from kbr_localization.simulation.run import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
    write_building,
)
import numpy as np
import pytest

SMALL = BuildingConfig(width=160, height=120, texture=48, size=14.0)
RUN = RunConfig('run', seconds=6.0, seed=7)


@pytest.fixture(scope='module')
def building():
    return SyntheticBuilding(SMALL)


def test_a_run_is_a_dataset_with_regular_frames_that_are_always_rendered_alike(building):
    run, again = SyntheticRun(building, RUN), SyntheticRun(building, RUN)
    assert isinstance(run, Dataset)
    assert len(run) == 15
    stamps = np.array([frame.stamp_ns for frame in run])
    np.testing.assert_allclose(np.diff(stamps) * 1e-9, 0.4, atol=0.021)
    assert run.odometry.stamps_ns[0] < stamps[0] < stamps[-1] < run.odometry.stamps_ns[-1]
    np.testing.assert_allclose(np.diff(run.odometry.stamps_ns), 50_000_000)
    np.testing.assert_array_equal(run[3].load_image(), again[3].load_image())
    night = SyntheticRun(building, replace(RUN, light='night'))
    assert np.any(run[3].load_image() != night[3].load_image())
    assert np.any(run[3].load_image() != again[4].load_image())


def test_the_yaw_of_the_mount_turns_the_camera(building):
    usual = SyntheticRun(building, RunConfig(seconds=2.0))
    aside = RunConfig(seconds=2.0, robot=Robot(camera=RobotCamera(yaw=0.2)))
    turned = SyntheticRun(building, aside)
    pose = se2.compose(usual[2].reference, [0, 0, 0.2])
    np.testing.assert_array_equal(turned[2].reference, usual[2].reference)
    seen, there = turned[2].load_image().astype(float), building.render(pose).astype(float)
    assert np.abs(seen - there).mean() < 0.6 * np.abs(seen - usual[2].load_image()).mean()


def test_odometry_errors_have_the_size_asked_for():
    """Of a straight way at 20 Hz and 0.5 m/s."""
    noise, rng = OdometryNoise(), np.random.default_rng(8)
    poses = np.column_stack([np.linspace(0, 1000, 40_001), np.zeros((40_001, 2))])
    stamps = 50_000_000 * np.arange(len(poses), dtype=np.int64)
    every_200_ms = reported_track(OdometryTrack(stamps, poses), noise, rng).poses[::4]
    errors = se2.between(every_200_ms[:-1], every_200_ms[1:]) - [0.1, 0.0, 0.0]
    np.testing.assert_allclose(
        errors.std(axis=0), [noise.along, noise.across, noise.turn], rtol=0.05
    )
    assert errors[:, 2].mean() / 0.1 == pytest.approx(noise.yaw_bias, rel=0.1)


def test_drawn_robots_follow_from_their_seed_and_keep_their_bounds():
    robots = [random_robot(seed) for seed in range(200)]
    assert robots[5] == random_robot(5) != robots[6]
    wheels = np.array([(r.odometry.offset_x, r.odometry.offset_y) for r in robots])
    np.testing.assert_allclose(np.abs(wheels).max(axis=0), [0.3, 0.1], atol=0.01)
    for name, middle in (('forward_scale', 1.0), ('turn_scale', 1.0), ('yaw_bias', 0.0)):
        values = [getattr(robot.odometry, name) - middle for robot in robots]
        assert max(values) == pytest.approx(0.03, rel=0.05)
        assert min(values) == pytest.approx(-0.03, rel=0.05)


def test_a_building_is_written_as_cold_runs_that_say_what_was_drawn(tmp_path):
    runs = [RunConfig('one', seconds=2.0, seed=1), RunConfig('two', seconds=2.0, seed=2)]
    runs[1] = with_robots(runs[1:], random_robot(5))[0]
    config = replace(SMALL, seed=3)
    paths = write_building(tmp_path / 'out', runs, config)
    assert [path.name for path in paths] == ['one', 'two']
    building = SyntheticBuilding(config)
    for path, run in zip(paths, runs, strict=True):
        written, rendered = open_dataset(path), SyntheticRun(building, run)
        assert written.skipped == {}
        for frame, original in zip(written, rendered, strict=True):
            assert frame.stamp_ns == original.stamp_ns
            np.testing.assert_allclose(frame.reference, original.reference, atol=1e-6)
            np.testing.assert_allclose(frame.odometry, original.odometry, atol=1e-5)
            difference = frame.load_image().astype(int) - original.load_image()
            assert np.abs(difference).mean() < 6
    drawn = [json.loads((path / 'robot.json').read_text())['run']['robot'] for path in paths]
    assert [robot['name'] for robot in drawn] == ['usual', 'random 5']
    assert drawn[1]['odometry']['offset_x'] == random_robot(5).odometry.offset_x
    with pytest.raises(DatasetError, match='exists already'):
        write_building(tmp_path / 'out', runs, config)


def test_the_command_draws_the_robot_of_the_test_run_or_of_the_map(tmp_path, monkeypatch):
    short = (RunConfig('mapped', route='tour', frame_rate=0.1), RunConfig('tested', seconds=1.0))
    monkeypatch.setattr(rendered, 'DEMO_RUNS', short)
    result = invoke(
        'synth', tmp_path / 'out', '--small', '--seed', 11, '--robot', 5, '--map-robot', 6
    )
    assert result.returncode == 0, result.stderr
    for name, robot in (('mapped', 'random 6'), ('tested', 'random 5')):
        drawn = json.loads((tmp_path / 'out' / name / 'robot.json').read_text())
        assert (drawn['run']['robot']['name'], drawn['building']['seed']) == (robot, 11)
