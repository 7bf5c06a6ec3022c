"""Closures: how two visits lie beside each other, and what that tells of poses and odometry."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import MotionNoise, SIZE
from kbr_localization.localization.mapping.consistency import consistent_chains
from kbr_localization.localization.mapping.loop_closure import (
    Closures,
    find_pose,
    measure_closures,
)
from kbr_localization.localization.mapping.odometry_model import PathNoise, Prior, RUN_SD, SCALE
from kbr_localization.localization.mapping.pose_graph import solve_pose_graph
from kbr_localization.localization.mapping.trajectories import Trajectories
from kbr_localization.vision.turning import View
from mapping_helpers import trajectory_error
import numpy as np
import pytest

AROUND, DRIFT = 32, 0.01


def trajectories_of(odometry, run=None):
    """Return trajectories of runs (n,), none of whose poses are known."""
    run = np.zeros(len(odometry), dtype=np.intp) if run is None else run
    return Trajectories(odometry, run, np.arange(run[-1] + 1), np.zeros(run[-1] + 1, dtype=bool))


def closures_of(first, second, chain=None, score=1.0):
    """Return closures at the same poses."""
    m = len(first)
    chain = np.zeros(m, dtype=np.intp) if chain is None else chain
    none = np.zeros(m, dtype=bool)
    return Closures(first, second, np.zeros((m, 3)), np.broadcast_to(score, m), chain, none)


NO_CLOSURES = closures_of(*np.zeros((2, 0), np.intp))


def rounds_of_a_square(rounds=3):
    """Return rounds by an odometry that turns too much, and the true poses."""
    side = AROUND // 4
    true = np.tile([0.8, 0.0, 0.0], (rounds * AROUND, 1))
    true[side - 1 :: side] = [0.2, 0.0, 0.5 * np.pi]  # noqa: E203
    reported = true.copy()
    reported[:, 2] += DRIFT * true[:, 0]
    return trajectories_of(se2.chain(np.zeros(3), reported)), se2.chain(np.zeros(3), true)


def test_loops_tell_the_drift():
    trajectories, truth = rounds_of_a_square()
    again = np.arange(2 * AROUND)
    closures = closures_of(again + AROUND, again)
    assert np.abs(trajectories.odometry - truth)[:, :2].max() > 2.0
    guess = np.append(np.zeros(SIZE - 1), 0.8 * DRIFT)
    found = solve_pose_graph(trajectories, closures, guess, Prior())
    assert found.parameters[0, -1] == pytest.approx(DRIFT, abs=1e-3)
    # closures do not tell the scale: it stays but for what runs of one robot differ by
    assert found.calibration.deviations[SCALE] == pytest.approx(RUN_SD[SCALE], rel=5e-4)
    np.testing.assert_allclose(found.poses[:, :2], truth[:, :2], atol=0.1)


def test_wrong_closures_are_let_go_where_they_are_as_many_as_right_ones():
    trajectories, truth = rounds_of_a_square()
    chains = np.arange(0, 2 * AROUND, 8)[:, np.newaxis] + np.arange(8)
    # wrong ones are of other sides of the square, seen from the same distance to a corner
    first = np.concatenate([chains.ravel() + AROUND, chains.ravel() + 28])
    second = np.concatenate([chains.ravel(), chains.ravel() + 4])
    closures = closures_of(first, second, np.repeat(np.arange(16), 8))
    drifting = np.append(np.zeros(SIZE - 1), DRIFT)
    found = solve_pose_graph(trajectories, closures, drifting, Prior())
    np.testing.assert_array_equal(found.kept, closures.chain < 8)
    assert trajectory_error(found.poses, truth) < 0.05


def test_parts_that_nothing_relates_are_refused():
    way = np.column_stack([0.6 * np.arange(20.0), np.zeros((20, 2))])
    trajectories = trajectories_of(np.tile(way, (2, 1)), np.repeat(np.arange(2), 20))
    with pytest.raises(MapError, match='related to nothing; build a map of each run'):
        solve_pose_graph(trajectories, NO_CLOSURES, np.zeros(SIZE), Prior())


def test_ways_of_unlike_length_between_the_same_places_tell_the_drift_and_no_scale():
    """Of two runs the second goes round a block where the first goes straight on."""
    ahead, left = np.tile([0.6, 0.0, 0.0], (20, 1)), np.array([[0.0, 0.0, 0.5 * np.pi]])
    straight = np.concatenate([ahead, ahead, ahead])
    round_a_block = np.concatenate([ahead, left, ahead, -left, ahead, -left, ahead, left, ahead])
    poses = []
    for steps in (straight, round_a_block):
        reported = steps + np.outer(np.abs(steps[:, 0]), [0.0, 0.0, DRIFT])
        poses.append(se2.chain(np.zeros(3), reported))
    run, count = np.repeat(np.arange(2), [len(each) for each in poses]), len(straight) + 1
    trajectories = trajectories_of(np.concatenate(poses), run)
    before, after = np.arange(3, 14), np.arange(3, 14) + len(ahead) + len(ahead)
    detour = len(round_a_block) - len(straight)
    # a place before the block looks like one behind it as well, half as much
    closures = closures_of(
        count + np.concatenate([before, after + detour, before]),
        np.concatenate([before, after, after]),
        np.repeat(np.arange(3), 11),
        np.repeat([1.0, 1.0, 0.5], 11),
    )
    chains, parameters = consistent_chains(trajectories, closures, Prior())
    np.testing.assert_array_equal(chains, [0, 1])
    assert parameters[-1] == pytest.approx(DRIFT, abs=2e-3)
    assert parameters[SCALE] == 0.0


def test_chains_between_other_runs_make_no_ring_and_may_all_be_true():
    """Of three runs one is joined to each of the others, at places that are far apart on it."""
    way = np.column_stack([0.6 * np.arange(60.0), np.zeros(60), np.zeros(60)])
    trajectories = trajectories_of(np.tile(way, (3, 1)), np.repeat(np.arange(3), 60))
    near, far = np.arange(5, 10), np.arange(50, 55)
    first, second = np.concatenate([60 + near, 120 + near]), np.concatenate([near, far])
    chain = np.repeat(np.arange(2), 5)
    chains, _ = consistent_chains(trajectories, closures_of(first, second, chain), Prior())
    np.testing.assert_array_equal(chains, [0, 1])


def test_a_way_is_as_uncertain_as_its_steps_and_what_they_turn():
    way = np.column_stack([np.arange(3.0), np.zeros((3, 2))])
    noise = replace(MotionNoise.default(), per_metre=np.array([4e-4, 2e-4, 1e-3]))
    wander = PathNoise(trajectories_of(way), way, noise)
    law = wander.between(np.array([0, 2]), np.array([2, 0]))
    # two steps of 3e-4 m² along each axis; turns at 1 m and at 2 m move what lies off them
    np.testing.assert_allclose(law[:, 0, 0], [6e-4 + 1e-3 * 1.0, 6e-4 + 1e-3 * (1.0 + 4.0)])
    np.testing.assert_allclose(law[:, 2, 2], 2e-3)


def runs_along_one_way(runs, images=30):
    """Return runs along one straight way, every pair of whose images of a place is a closure."""
    way = np.column_stack([0.6 * np.arange(images), np.zeros(images), np.zeros(images)])
    trajectories = trajectories_of(np.tile(way, (runs, 1)), np.repeat(np.arange(runs), images))
    later, earlier = np.tril_indices(runs, -1)
    first, second = (
        (images * each[:, np.newaxis] + np.arange(images)).ravel() for each in (later, earlier)
    )
    return trajectories, closures_of(first, second, np.repeat(np.arange(len(later)), images))


@pytest.mark.parametrize('runs', [2, 3, 12])
def test_all_pairs_of_many_runs_tell_no_more_than_a_few(runs):
    """How certain it is where the last run lies hardly grows with the runs along that way."""
    exact = Prior(MotionNoise.default(), np.zeros(SIZE), np.full(SIZE, 1e-4))
    uncertain = []
    for trajectories, closures in (runs_along_one_way(2), runs_along_one_way(runs)):
        known = replace(trajectories, fixed=np.arange(trajectories.run[-1] + 1) == 0)
        found = solve_pose_graph(known, closures, np.zeros(SIZE), exact)
        assert found.kept.all()
        uncertain.append(np.sqrt(np.diag(found.covariances[-15])))
    assert np.all(uncertain[1] <= uncertain[0] * (1.0 + 1e-6))
    assert np.all(uncertain[1] > 0.8 * uncertain[0])


# the relative pose of two visits, by points of their images

VIEW = View(0.8, np.array([0.03, -0.01]))
WAYS = np.array([[1.2, 0.02, 0.01], [0.6, 0.0, 0.0], [-0.6, 0.0, 0.0], [-1.2, -0.01, 0.02]])
TRUE = np.array([0.08, 0.22, -0.09])


def matches(rng, pose, wrong=0.0, count=60):
    """Places in images at four poses and in one at `pose`, of the same points of a corridor."""
    found = []
    for way in WAYS:
        side = rng.choice([-1.0, 1.0], count) * rng.uniform(0.8, 1.5, count)
        points = np.column_stack([rng.uniform(2.0, 12.0, count), side, np.zeros(count)])
        height = rng.uniform(-1.0, 1.5, count)
        rays = []
        for frame in (se2.inverse(way), pose):
            x, y = se2.between(np.tile(frame, (count, 1)), points)[:, :2].T
            rays.append(np.column_stack([-y / x, -height / x]))
        places = np.hstack(rays) * VIEW.focal + np.tile(VIEW.ahead, 2)
        places += rng.normal(size=places.shape) * 0.4 / 320
        spoilt = round(wrong * count)
        places[:spoilt, 2:] = rng.uniform(-0.4, 0.4, (spoilt, 2))
        found.append(places)
    return found


@pytest.mark.parametrize('wrong', [0.0, 0.4])
def test_the_place_aside_and_the_heading_are_found(wrong):
    found = find_pose(
        matches(np.random.default_rng(1), TRUE, wrong), WAYS, VIEW, np.array([0.1, 0.0, 0.0])
    )
    np.testing.assert_allclose(found[1:], TRUE[1:], atol=0.02)
    assert abs(found[0] - TRUE[0]) < 0.1


def test_images_of_other_places_say_nothing():
    rng = np.random.default_rng(2)
    assert find_pose(matches(rng, TRUE, wrong=1.0), WAYS, VIEW, np.zeros(3)) is None
    assert find_pose(matches(rng, TRUE, count=5), WAYS, VIEW, np.zeros(3)) is None


def test_blank_images_leave_closures_as_they_are():
    trajectories = trajectories_of(
        np.column_stack([0.3 * np.arange(80), np.zeros(80), np.zeros(80)])
    )
    closures = closures_of(np.array([60, 62, 64]), np.array([10, 12, 14]), np.arange(3))
    blank = [np.full((240, 320), 128, dtype=np.uint8)] * 80
    relative, seen = measure_closures(trajectories, closures, np.zeros(7), blank, VIEW)
    assert not seen.any()
    np.testing.assert_array_equal(relative, closures.relative)
