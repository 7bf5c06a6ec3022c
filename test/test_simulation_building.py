"""Rendered buildings: the plan, what a camera sees in it, and drives through it."""

import itertools

from kbr_localization import se2
from kbr_localization.simulation.floor_plan import office
from kbr_localization.simulation.light import Light, LIGHTS
from kbr_localization.simulation.renderer import Atlas, Camera, cast_rays
from kbr_localization.simulation.robot import drive_along, RATE, RobotCamera
from kbr_localization.simulation.run import BuildingConfig, SyntheticBuilding
from kbr_localization.simulation.sprites import crowd
from kbr_localization.simulation.textures import Style
import numpy as np
import pytest

PLAN = office(22.5, np.random.default_rng(3))
FLAT = Light(gradient=0.0, noise=0.0)
USUAL = RobotCamera().mounted(320, 240)


@pytest.fixture(scope='module')
def building():
    """Without furniture, whose flat pictures turn with the camera."""
    return SyntheticBuilding(
        BuildingConfig(14.0, width=320, height=240, texture=48, furniture=0.0)
    )


def poses_on_ways(plan, count, rng):
    a, b = plan.nodes[plan.edges[rng.integers(len(plan.edges), size=count)].T]
    points = a + rng.uniform(0.2, 0.8, (count, 1)) * (b - a)
    return np.column_stack([points, rng.uniform(-np.pi, np.pi, count)])


def test_rays_end_where_small_steps_meet_the_wall():
    camera, steps = Camera(33, 24, 20.0, 1.0), np.arange(0.0, 30.0, 0.01)
    for pose in poses_on_ways(PLAN, 20, np.random.default_rng(1)):
        depth = cast_rays(PLAN.walls, camera, pose).depth
        ahead = np.array([np.cos(pose[2]), np.sin(pose[2])])
        rays = ahead + camera.slopes[:, np.newaxis] * np.array([ahead[1], -ahead[0]])
        free = PLAN.is_free(pose[:2] + steps[:, np.newaxis, np.newaxis] * rays)
        # a ray through the corner of a cell may pass it by less than a step
        assert np.mean(np.abs(depth - steps[np.argmin(free, axis=0)]) < 0.03) > 0.95


def test_turning_to_the_left_moves_the_picture_to_the_right(building):
    camera, angle = USUAL, 0.2
    columns = camera.width // 2 + np.arange(-8, 8)
    left, changes = columns - round(camera.focal * np.tan(angle)), []
    for pose in poses_on_ways(building.plan, 5, np.random.default_rng(2)):
        before, after = (
            building.render(pose + np.array([0, 0, a]), FLAT).astype(float) for a in (0.0, angle)
        )
        changes.append([np.abs(after[:, columns] - before[:, old]) for old in (left, columns)])
    moved, still = np.mean(changes, axis=(0, 2, 3))
    assert moved < 0.5 * still


def test_the_largest_building_fits_the_images_that_opencv_can_look_up():
    rng = np.random.default_rng(0)
    assert max(Atlas(office(40.0, rng), Style(0, 96), rng).shape) <= 32767


def test_a_tour_takes_every_way_once_in_each_direction():
    taken = sorted(itertools.pairwise(PLAN.tour(np.random.default_rng(5))))
    assert taken == sorted([(a, b) for a, b in PLAN.edges] + [(b, a) for a, b in PLAN.edges])


def test_drives_keep_clear_of_walls_and_within_the_speed():
    rng = np.random.default_rng(6)
    poses = drive_along(PLAN, PLAN.random_walk(150.0, rng), rng)
    around = np.stack([np.cos(np.arange(8)), np.sin(np.arange(8))], axis=1)
    assert np.all(PLAN.is_free(poses[:, np.newaxis, :2] + 0.2 * around))
    steps = se2.between(poses[:-1], poses[1:])
    assert np.hypot(*steps[:, :2].T).max() <= 0.8 / RATE + 1e-9
    assert np.abs(steps[:, 2]).max() <= 1.0 / RATE + 1e-9
    assert 100.0 < np.hypot(*steps[:, :2].T).sum() < 170.0


@pytest.mark.parametrize('light', LIGHTS)
def test_pictures_use_the_range_of_grey(building, light):
    for pose in poses_on_ways(building.plan, 8, np.random.default_rng(2)):
        image = building.render(pose, LIGHTS[light], np.random.default_rng(3))
        assert image.shape == (240, 320) and image.dtype == np.uint8
        assert 50 < image.mean() < 200 and image.std() > 12
        assert np.mean(image == 255) < 0.3


def test_people_hide_what_is_behind_them_and_walls_hide_people(building):
    a, b = building.plan.nodes[:2]
    pose, way = np.array([*a, np.arctan2(*(b - a)[::-1])]), (b - a) / np.hypot(*(b - a))
    people = crowd(building.plan, building.characters, 1, 10.0, np.random.default_rng(0))
    sprite, _ = people[0](0.0)
    empty = building.render(pose, FLAT).astype(int)
    seen = building.render(pose, FLAT, people=[(sprite, a + 2.0 * way)])
    # the exposure of the rest changes a little
    changed = np.abs(seen - empty) > 25
    assert 0.02 < changed.mean() < 0.6
    columns = np.flatnonzero(changed.mean(axis=0) > 0.3)
    assert abs(columns.mean() - (USUAL.width - 1) / 2) < 10
    for hidden in (b + 4.0 * way, a - 1.0 * way):
        image = building.render(pose, FLAT, people=[(sprite, hidden)])
        np.testing.assert_array_equal(image, empty)


def test_the_mount_moves_the_horizon_and_the_view_the_focal_length():
    down = RobotCamera(pitch=0.05).mounted(320, 240)
    assert down.horizon == pytest.approx(USUAL.horizon - USUAL.focal * np.tan(0.05))
    assert RobotCamera(height=1.3).mounted(320, 240).mount == 1.3
    assert RobotCamera(view=90.0).mounted(320, 240).focal == pytest.approx(160.0)
