import itertools

import cv2
from kbr_localization import se2
from kbr_localization.errors import ConfigurationError, DatasetError
from kbr_localization.simulation import driving
from kbr_localization.simulation.driving import Drive, OdometryNoise
from kbr_localization.simulation.floor_plan import CELL, PlanBuilder, PLANS
from kbr_localization.simulation.light import Light, LIGHTS
from kbr_localization.simulation.model import BuildingConfig, SyntheticBuilding
from kbr_localization.simulation.renderer import Atlas, Camera, cast, LARGEST
from kbr_localization.simulation.textures import Style
import numpy as np
import pytest

KINDS = sorted(PLANS)
SMALL = {'width': 160, 'height': 120, 'texture': 48, 'size': 14.0}


def plan_of(kind, size=18.0):
    return PLANS[kind](size, np.random.default_rng(3))


@pytest.fixture(scope='module')
def building():
    """Without furniture, whose flat pictures turn with the camera."""
    return SyntheticBuilding(BuildingConfig(width=320, height=240, size=14.0, furniture=0.0))


def poses_on_ways(plan, count, rng):
    a, b = plan.nodes[plan.edges[rng.integers(len(plan.edges), size=count)].T]
    points = a + rng.uniform(0.2, 0.8, (count, 1)) * (b - a)
    return np.column_stack([points, rng.uniform(-np.pi, np.pi, count)])


@pytest.mark.parametrize('kind', KINDS)
def test_walls_have_free_space_before_and_none_behind(kind):
    plan = plan_of(kind, 22.5)
    walls = plan.walls
    middle = walls.start + 0.5 * walls.length[:, np.newaxis] * walls.right
    assert np.all(plan.is_free(middle + 0.01 * walls.normal))
    assert not np.any(plan.is_free(middle - 0.01 * walls.normal))
    np.testing.assert_allclose(np.hypot(*walls.right.T), 1.0)
    # to the right hand of one who faces the wall
    np.testing.assert_allclose(walls.right[:, 0], -walls.normal[:, 1], atol=1e-12)


@pytest.mark.parametrize('kind', KINDS)
def test_walls_close_every_outline(kind):
    """Every cell side between free and solid belongs to exactly one wall."""
    plan = plan_of(kind)
    free = plan.region >= 0
    sides = np.sum(free[1:] != free[:-1]) + np.sum(free[:, 1:] != free[:, :-1])
    assert plan.walls.length.sum() == pytest.approx(sides * CELL)


def test_a_way_through_a_wall_is_refused():
    plan = PlanBuilder(6.0, 3.0)
    for x in (0.0, 3.25):
        plan.room(x, 0.0, 2.75, 3.0, 'room')
    plan.edge(plan.node(1.0, 1.0), plan.node(5.0, 1.0))
    with pytest.raises(DatasetError, match='leads through a wall'):
        plan.build()


@pytest.mark.parametrize('kind', KINDS)
def test_rays_end_where_small_steps_meet_the_wall(kind):
    plan, camera = plan_of(kind), Camera(33, 24, 20.0, 1.0, 2.75)
    steps = np.arange(0.0, 30.0, 0.01)
    for pose in poses_on_ways(plan, 10, np.random.default_rng(1)):
        depth = cast(plan.walls, camera, pose).depth
        ahead = np.array([np.cos(pose[2]), np.sin(pose[2])])
        right = np.array([ahead[1], -ahead[0]])
        rays = ahead + camera.slopes[:, np.newaxis] * right
        free = plan.is_free(pose[:2] + steps[:, np.newaxis, np.newaxis] * rays)
        first_solid = np.argmin(free, axis=0)
        # a ray through the corner of a cell may pass it by less than a step
        assert np.mean(np.abs(depth - steps[first_solid]) < 0.03) > 0.95


def detail(image):
    """Return the picture without its slow changes, which exposure and vignette bring about."""
    return image.astype(float) - cv2.GaussianBlur(image, (0, 0), 8.0)


def warped_difference(source, target, homography):
    """Mean difference of detail where the warped source covers the target."""
    size = target.shape[1::-1]
    warped = cv2.warpPerspective(source, homography, size)
    covered = cv2.warpPerspective(np.full_like(source, 255), homography, size) == 255
    covered = cv2.erode(covered.astype(np.uint8), np.ones((25, 25))) > 0
    assert covered.mean() > 0.3
    return np.abs(detail(warped) - detail(target))[covered].mean()


FLAT = Light(gradient=0.0, noise=0.0)


def test_turning_the_camera_moves_the_picture_by_the_homography_of_the_turn(building):
    camera = building.camera
    intrinsic = np.array(
        [[camera.focal, 0, (camera.width - 1) / 2], [0, camera.focal, camera.horizon], [0, 0, 1]]
    )
    angle = 0.2
    cosine, sine = np.cos(angle), np.sin(angle)
    # a turn to the left moves what is seen to the right
    turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
    homography = intrinsic @ turn @ np.linalg.inv(intrinsic)
    for pose in poses_on_ways(building.plan, 5, np.random.default_rng(2)):
        before, after = (building.render(pose + np.array([0, 0, a]), FLAT) for a in (0.0, angle))
        difference = warped_difference(before, after, homography)
        assert difference < 0.3 * warped_difference(before, after, np.eye(3))


def test_coming_closer_to_a_wall_magnifies_it_about_the_horizon(building):
    plan, camera = building.plan, building.camera
    walls = plan.walls
    wall = int(np.argmax(walls.length * [plan.kinds[r] == 'corridor' for r in walls.region]))
    point = walls.start[wall] + 0.5 * walls.length[wall] * walls.right[wall]
    heading = np.arctan2(*-walls.normal[wall][::-1])
    images = [
        building.render(np.array([*(point + d * walls.normal[wall]), heading]), FLAT)
        for d in (1.5, 1.0)
    ]
    magnification = 1.5
    centre = np.array([(camera.width - 1) / 2, camera.horizon])
    homography = np.eye(3)
    homography[:2, :2] *= magnification
    homography[:2, 2] = (1 - magnification) * centre
    difference = warped_difference(*images, homography)
    assert difference < 0.6 * warped_difference(*images, np.eye(3))


@pytest.mark.parametrize('kind', KINDS)
def test_the_largest_building_fits_the_atlas(kind):
    plan = plan_of(kind, 40.0)
    atlas = Atlas(plan, Style(0, 0.2, 96, 2.75), False, np.random.default_rng(0))
    assert max(atlas.layout.shape) <= LARGEST


@pytest.mark.parametrize('kind', KINDS)
def test_a_tour_takes_every_way_once_in_each_direction(kind):
    plan = plan_of(kind)
    nodes = driving.tour(plan, np.random.default_rng(5))
    taken = sorted(itertools.pairwise(nodes))
    assert taken == sorted([(a, b) for a, b in plan.edges] + [(b, a) for a, b in plan.edges])


@pytest.mark.parametrize('kind', KINDS)
def test_drives_keep_clear_of_walls_and_within_the_speed(kind):
    plan = plan_of(kind)
    rng = np.random.default_rng(6)
    drive = driving.follow(plan, driving.random_walk(plan, 150.0, rng), 0.8, 0.1, rng)
    around = np.stack([np.cos(np.arange(8)), np.sin(np.arange(8))], axis=1)
    assert np.all(plan.is_free(drive.poses[:, np.newaxis, :2] + 0.2 * around))
    steps = se2.between(drive.poses[:-1], drive.poses[1:])
    assert np.hypot(*steps[:, :2].T).max() <= 0.8 / driving.RATE + 1e-9
    assert np.abs(steps[:, 2]).max() <= 1.0 / driving.RATE + 1e-9
    assert 100.0 < drive.length < 170.0


def straight_drive(seconds=2000.0):
    count = int(seconds * driving.RATE)
    poses = np.zeros((count, 3))
    poses[:, 0] = np.arange(count) * 0.5 / driving.RATE
    return Drive(poses)


def test_odometry_errors_have_the_size_asked_for():
    noise = OdometryNoise()
    track = driving.measure(straight_drive(), noise, np.random.default_rng(8))
    every_200_ms = track.poses[::4]
    errors = se2.between(every_200_ms[:-1], every_200_ms[1:]) - [0.1, 0.0, 0.0]
    np.testing.assert_allclose(
        errors.std(axis=0), [noise.along, noise.across, noise.turn], rtol=0.05
    )
    assert errors[:, 2].mean() / 0.1 == pytest.approx(noise.yaw_bias, rel=0.1)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'kind': 'castle'}, "'kind': expected one of"),
        ({'size': 3.0}, "'size': expected a value in"),
        ({'view': float('nan')}, "'view': expected a finite number"),
    ],
)
def test_bad_parameters_of_a_building_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        BuildingConfig(**settings)


def test_a_picture_from_inside_of_a_wall_is_refused(building):
    for pose in ([0.0, 0.0, 0.0], [np.nan, 2.0, 0.0], [2.0, 2.0]):
        with pytest.raises(DatasetError, match='expected a pose'):
            building.render(np.array(pose))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('colour', [False, True])
def test_pictures_of_every_kind_use_the_range_of_grey(kind, colour):
    building = SyntheticBuilding(BuildingConfig(kind=kind, colour=colour, **SMALL))
    for light in LIGHTS.values():
        for pose in poses_on_ways(building.plan, 4, np.random.default_rng(2)):
            image = building.render(pose, light, np.random.default_rng(3))
            assert image.shape == ((120, 160, 3) if colour else (120, 160))
            assert image.dtype == np.uint8
            assert 50 < image.mean() < 200
            assert image.std() > 12
            assert np.mean(image == 255) < 0.3


def test_a_turning_camera_blurs(building):
    pose = poses_on_ways(building.plan, 1, np.random.default_rng(4))[0]
    sharp, blurred = (building.render(pose, FLAT, turn=turn) for turn in (0.0, 0.03))
    edges = [np.abs(np.diff(image.astype(float), axis=1)).mean() for image in (sharp, blurred)]
    assert edges[1] < 0.7 * edges[0]


def test_people_hide_what_is_behind_them_and_walls_hide_people(building):
    plan = building.plan
    a, b = plan.nodes[:2]
    heading = np.arctan2(*(b - a)[::-1])
    pose = np.array([*a, heading])
    way = (b - a) / np.hypot(*(b - a))
    person = building.passers_by(1, 10.0, np.random.default_rng(0))[0]
    sprite, _ = person.at(0.0)
    empty = building.render(pose, FLAT).astype(int)
    seen = building.render(pose, FLAT, people=[(sprite, a + 2.0 * way)])
    # the exposure of the rest changes a little
    changed = np.abs(seen - empty) > 25
    assert 0.02 < changed.mean() < 0.6
    columns = np.flatnonzero(changed.mean(axis=0) > 0.3)
    assert abs(columns.mean() - (building.camera.width - 1) / 2) < 10
    behind_the_wall = building.render(pose, FLAT, people=[(sprite, b + 4.0 * way)])
    behind_the_camera = building.render(pose, FLAT, people=[(sprite, a - 1.0 * way)])
    np.testing.assert_array_equal(behind_the_wall, empty)
    np.testing.assert_array_equal(behind_the_camera, empty)
