"""Robots that are drawn: what their odometry and their cameras do, against closed forms."""

import json

from command import invoke
from kbr_localization import se2, simulation
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_steps, TRACK_M
from kbr_localization.errors import ConfigurationError
from kbr_localization.simulation import (
    BuildingConfig,
    driving,
    LIGHTS,
    random_robot,
    Robot,
    RobotCamera,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
    write_building,
)
from kbr_localization.simulation.driving import Drive
import numpy as np
import pytest

SMALL = BuildingConfig(width=160, height=120, texture=48, size=14.0)
CLOUDY = LIGHTS['cloudy']


@pytest.fixture(scope='module')
def building():
    return SyntheticBuilding(SMALL)


@pytest.fixture(scope='module')
def pose(building):
    a, b = building.plan.nodes[building.plan.edges[0]]
    return np.array([*a, np.arctan2(*(b - a)[::-1])])


def without_noise(**errors):
    return OdometryNoise(along=0.0, across=0.0, turn=0.0, **{'yaw_bias': 0.0, **errors})


def measured(poses, **errors):
    """Whole motion (3,) that wheels with some errors report of true poses (m, 3)."""
    track = driving.measure(Drive(poses), without_noise(**errors), np.random.default_rng(0))
    return se2.between(track.poses[0], track.poses[-1])


def straight(metres=10.0, steps=400):
    return np.column_stack([np.linspace(0, metres, steps + 1), np.zeros((steps + 1, 2))])


def turning(radians, steps=400):
    return np.column_stack([np.zeros((steps + 1, 2)), np.linspace(0, radians, steps + 1)])


def test_wheels_beside_the_pose_move_when_the_robot_turns_on_the_spot():
    """The point at (a, b) goes by (R - 1) (a, b) in the frame in which it began."""
    angle, offset = 1.1, np.array([-0.2, 0.07])
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    motion = measured(turning(angle), offset_x=offset[0], offset_y=offset[1])
    np.testing.assert_allclose(motion, [*(rotation @ offset - offset), angle], atol=1e-9)
    # and as far as the robot where it goes straight
    ahead = measured(straight(), offset_x=offset[0], offset_y=offset[1])
    np.testing.assert_allclose(ahead, [10.0, 0.0, 0.0], atol=1e-9)


def test_angle_scales_and_drift_are_as_asked_for():
    aside = [10 * np.cos(0.1), -10 * np.sin(0.1), 0.0]
    np.testing.assert_allclose(measured(straight(), mounting=0.1), aside, atol=1e-9)
    np.testing.assert_allclose(measured(straight(), forward_scale=0.97), [9.7, 0, 0], atol=1e-9)
    np.testing.assert_allclose(measured(turning(2.0), turn_scale=1.03), [0, 0, 2.06], atol=1e-9)
    # a drift of d over s metres is an arc of radius 1 / d
    drift, s = 0.03, 10.0
    arc = [np.sin(drift * s) / drift, (1 - np.cos(drift * s)) / drift, drift * s]
    np.testing.assert_allclose(measured(straight(s), yaw_bias=drift), arc, atol=5e-3)


def test_slips_come_as_often_as_asked_for_and_turn_the_robot():
    noise = without_noise(slip_rate=0.5, slip_size=0.04)
    poses = straight(400.0, 20_000)
    track = driving.measure(Drive(poses), noise, np.random.default_rng(1))
    errors = se2.between(track.poses[:-1], track.poses[1:]) - [0.02, 0, 0]
    slips = np.abs(errors[:, 2]) > 1e-6
    assert slips.sum() == pytest.approx(200, abs=45)
    np.testing.assert_allclose(np.abs(errors[slips, 2]), 0.04 / TRACK_M, atol=1e-9)
    np.testing.assert_allclose(errors[slips, 0], 0.02, atol=1e-9)
    assert 0.3 < np.mean(errors[slips, 2] > 0) < 0.7
    np.testing.assert_allclose(errors[~slips], 0.0, atol=1e-9)
    # whatever else is drawn is the same
    rngs = [np.random.default_rng(1) for _ in range(2)]
    for rng, rate in zip(rngs, (0.0, 0.5), strict=True):
        reported_steps(np.ones((10, 3)), 10**8, OdometryNoise(slip_rate=rate), rng)
    assert rngs[0].random() == rngs[1].random()


def test_the_usual_robot_is_what_it_was(building):
    run = SyntheticRun(building, RunConfig('run', seconds=6.0, seed=7))
    last = [-3.733050626875516, -6.117332872657729, -1.7658122403784775]
    np.testing.assert_allclose(run.odometry.poses[-1], last, atol=1e-9)
    assert run[7].load_image().mean() == pytest.approx(113.587, abs=0.05)
    same = SyntheticRun(building, RunConfig('run', seconds=6.0, seed=7, robot=Robot()))
    np.testing.assert_array_equal(run[3].load_image(), same[3].load_image())
    np.testing.assert_array_equal(run.odometry.poses, same.odometry.poses)


def picture(building, pose, rng=None, **camera):
    return building.render(pose, CLOUDY, rng, eye=RobotCamera(**camera)).astype(float)


def test_vignetting_darkens_the_corners_alone(building, pose):
    usual, dark = (picture(building, pose, vignetting=share) for share in (0.0, 0.5))
    corner, middle = (slice(0, 12), slice(0, 16)), (slice(54, 66), slice(72, 88))
    loss = dark[corner].mean() / usual[corner].mean()
    assert loss < 0.75 * dark[middle].mean() / usual[middle].mean()


def test_sensor_noise_has_the_factor(building, pose):
    clean, usual, noisy = (
        picture(building, pose, np.random.default_rng(3), noise=factor) for factor in (0, 1, 4)
    )
    assert np.std(usual - clean) == pytest.approx(CLOUDY.noise, rel=0.2)
    assert np.std(noisy - clean) == pytest.approx(4 * CLOUDY.noise, rel=0.2)


def test_the_mount_moves_the_horizon_and_the_view_the_focal_length(building):
    camera = building.camera
    down = RobotCamera(pitch=0.05).mounted(camera)
    assert down.horizon == pytest.approx(camera.horizon - camera.focal * np.tan(0.05))
    assert RobotCamera(height=1.3).mounted(camera).mount == 1.3
    wide = RobotCamera(view=90.0).mounted(camera)
    assert wide.focal == pytest.approx(camera.width / 2)


def test_the_yaw_of_the_mount_turns_the_camera(building):
    usual = SyntheticRun(building, RunConfig(seconds=2.0))
    turned = SyntheticRun(
        building, RunConfig(seconds=2.0, robot=Robot(camera=RobotCamera(yaw=0.2)))
    )
    pose = se2.compose(usual[2].reference, [0, 0, 0.2])
    np.testing.assert_array_equal(turned[2].reference, usual[2].reference)
    seen, there = turned[2].load_image().astype(float), building.render(pose).astype(float)
    assert np.abs(seen - there).mean() < 0.6 * np.abs(seen - usual[2].load_image()).mean()


def test_drawn_robots_follow_from_their_seed_and_keep_their_bounds():
    robots = [random_robot(seed) for seed in range(200)]
    assert robots[5] == random_robot(5) != robots[6]
    wheels = np.array([robot.odometry.wheels_on_robot for robot in robots])
    assert np.abs(wheels[:, 0]).max() == pytest.approx(0.3, abs=0.01)
    assert np.abs(wheels[:, 1]).max() == pytest.approx(0.1, abs=0.01)
    for name, middle, reach in (
        ('forward_scale', 1.0, 0.03), ('turn_scale', 1.0, 0.03), ('yaw_bias', 0.0, 0.03),
    ):  # fmt: skip
        values = [getattr(robot.odometry, name) - middle for robot in robots]
        assert max(values) == pytest.approx(reach, rel=0.05)
        assert min(values) == pytest.approx(-reach, rel=0.05)


def test_a_written_run_says_what_was_drawn(tmp_path):
    runs = [
        RunConfig('map', route='tour', seconds=2.0),
        RunConfig('test', seconds=2.0, robot=Robot()),
    ]
    runs = [
        RunConfig(**{**vars(run), 'route': 'walk'}) for run in with_robots(runs, random_robot(5))
    ]
    paths = write_building(tmp_path / 'out', 3, runs, SMALL)
    drawn = [json.loads((path / 'robot.json').read_text())['run']['robot'] for path in paths]
    assert [robot['name'] for robot in drawn] == ['usual', 'random 5']
    assert drawn[1]['odometry']['offset_x'] == random_robot(5).odometry.offset_x
    assert drawn[0]['camera']['blur'] == 0.0
    assert len(open_dataset(paths[1])) == 5


def test_bad_cameras_are_refused():
    with pytest.raises(ConfigurationError, match=r"'view': expected 0 or a value in \[20"):
        RobotCamera(view=5.0)
    with pytest.raises(ConfigurationError, match="'offset_x': expected a value in"):
        OdometryNoise(offset_x=3.0)


def test_the_command_draws_the_robot_of_the_test_run_or_of_the_map(tmp_path, monkeypatch):
    short = (
        RunConfig('mapped', route='tour', frame_rate=0.1),
        RunConfig('tested', seconds=1.0),
    )
    monkeypatch.setattr(simulation, 'DEMO_RUNS', short)
    result = invoke('synth', tmp_path / 'out', '--seed', 11, '--robot', 5, '--map-robot', 6)
    assert result.returncode == 0, result.stderr
    names = {
        path.parent.name: json.loads(path.read_text())['run']['robot']['name']
        for path in (tmp_path / 'out').glob('*/robot.json')
    }
    assert names == {'mapped': 'random 6', 'tested': 'random 5'}
