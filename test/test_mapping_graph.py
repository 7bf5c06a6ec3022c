"""The pose graph: its sparse solution is that of the whole system."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.mapping.bordered import NormalEquations
from kbr_localization.localization.mapping.closures import Closures
from kbr_localization.localization.mapping.consistency import agree
from kbr_localization.localization.mapping.graph import Edges, odometry_edges, solve
from kbr_localization.localization.mapping.merging import DEVIATION
from kbr_localization.localization.mapping.problem import Problem
from kbr_localization.localization.mapping.trajectories import Trajectories
from kbr_localization.localization.mapping.wheels import (
    Belief,
    PARAMETERS,
    Prior,
    RUN,
    SCALE,
    Wander,
)
from kbr_localization.localization.motion import MotionNoise
import numpy as np
import pytest

POSES, RUNS = 40, 2


def random_system(rng):
    """Return equations of a chain of poses with a few loops, each step knowing its parameters."""
    poses = 3 * POSES
    system = NormalEquations(poses + PARAMETERS * RUNS, poses)
    start = np.concatenate([np.arange(POSES - 1), rng.integers(POSES, size=8)])
    end = np.concatenate([np.arange(1, POSES), rng.integers(POSES, size=8)])
    m = len(start)
    spread = rng.normal(size=(m, 3, 3))
    information = spread @ np.swapaxes(spread, 1, 2) + np.eye(3)
    blocks = [
        (3 * start, rng.normal(size=(m, 3, 3))),
        (3 * end, rng.normal(size=(m, 3, 3))),
        (poses + PARAMETERS * rng.integers(RUNS, size=m), rng.normal(size=(m, 3, PARAMETERS))),
    ]
    system.add(rng.normal(size=(m, 3)), information, blocks)
    unit = np.eye(system.size)[np.newaxis]
    system.add(np.zeros((1, system.size)), 0.1 * unit, [(np.zeros(1, dtype=np.intp), unit)])
    return system


def test_the_step_is_that_of_the_whole_system():
    system = random_system(np.random.default_rng(0))
    whole = system.matrix().toarray()
    np.testing.assert_allclose(whole, whole.T, atol=1e-9)
    step = system.factor().step(system.right)
    np.testing.assert_allclose(step, np.linalg.solve(whole, system.right), atol=1e-8)


def test_covariances_are_those_of_the_whole_system():
    rng = np.random.default_rng(1)
    system = random_system(rng)
    inverse = np.linalg.inv(system.matrix().toarray())[: 3 * POSES, : 3 * POSES]
    factor = system.factor()
    np.testing.assert_allclose(factor.solve(np.eye(3 * POSES)), inverse, atol=1e-8)
    pairs = 300
    columns = 3 * rng.integers(POSES, size=(pairs, 2, 1)) + np.arange(3)
    columns, slopes = columns.reshape(pairs, 6), rng.normal(size=(pairs, 3, 6))
    picked = inverse[columns[:, :, np.newaxis], columns[:, np.newaxis]]
    expected = slopes @ picked @ np.swapaxes(slopes, 1, 2)
    np.testing.assert_allclose(factor.covariances(columns, slopes), expected, atol=1e-7)


def test_poses_that_nothing_relates_are_refused():
    system = NormalEquations(6, 6)
    nowhere = np.zeros((1, 3, 3))
    system.add(np.ones((1, 3)), np.eye(3)[np.newaxis], [(np.array([0]), nowhere)])
    with pytest.raises(MapError, match='related to nothing'):
        system.factor()


@pytest.mark.parametrize('seed', range(6))
def test_a_part_that_nothing_relates_to_the_rest_is_refused_whatever_the_rounding(seed):
    poses = np.random.default_rng(seed).normal(size=(10, 3)) * np.array([5.0, 5.0, 2.0])
    start = np.array([0, 1, 2, 3, 5, 6, 7, 8])
    certain = np.tile(100.0 * np.eye(3), (len(start), 1, 1))
    ways = Edges(start, start + 1, se2.between(poses[start], poses[start + 1]), certain)
    with pytest.raises(MapError, match='related to nothing; build a map of each run'):
        solve(poses, np.zeros((1, PARAMETERS)), (ways,))


AROUND, DRIFT = 32, 0.01


def rounds_of_a_square():
    """Three rounds by an odometry that turns too much, and the true poses."""
    side = AROUND // 4
    last = side - 1
    true = np.tile([0.8, 0.0, 0.0], (3 * AROUND, 1))
    true[last::side] = [0.2, 0.0, 0.5 * np.pi]
    reported = true.copy()
    reported[:, 2] += DRIFT * true[:, 0]
    piece = np.zeros(len(true) + 1, dtype=np.intp)
    trajectories = Trajectories.of(
        se2.chain(np.zeros(3), reported), piece, np.zeros(1, dtype=np.intp)
    )
    return trajectories, se2.chain(np.zeros(3), true)


def test_loops_tell_the_drift():
    """The rounds are joined where they pass."""
    trajectories, truth = rounds_of_a_square()
    nodes = np.arange(len(truth))
    ways = odometry_edges(trajectories, nodes, MotionNoise.default(), nodes)
    again = np.arange(2 * AROUND)
    certain = np.broadcast_to(1e4 * np.eye(3), (len(again), 3, 3))
    places = Edges(again + AROUND, again, np.zeros((len(again), 3)), certain)
    found = solve(trajectories.odometry, np.zeros((1, PARAMETERS)), (ways, places))
    assert np.abs(trajectories.odometry - truth)[:, :2].max() > 2.0
    np.testing.assert_allclose(found.parameters[0, -1], DRIFT, atol=1e-3)
    # closures do not tell the scale: it stays but for what runs of one robot differ by
    np.testing.assert_allclose(found.of_common()[SCALE, SCALE], RUN[SCALE] ** 2, rtol=1e-3)
    np.testing.assert_allclose(found.poses[:, :2], truth[:, :2], atol=0.1)


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
    trajectories = Trajectories.of(np.concatenate(poses), run, np.arange(2))
    before, after = np.arange(3, 14), np.arange(3, 14) + len(ahead) + len(ahead)
    detour = len(round_a_block) - len(straight)
    # a place before the block looks like one behind it as well, half as much
    closures = Closures(
        count + np.concatenate([before, after + detour, before]),
        np.concatenate([before, after, after]),
        np.zeros((33, 3)),
        np.repeat([1.0, 1.0, 0.5], 11),
        np.repeat(np.arange(3), 11),
    )
    found = agree(trajectories, closures, Prior.unknown())
    np.testing.assert_array_equal(found.chains, [0, 1])
    assert (found.weight, found.rival) == (22.0, 5.5)
    assert found.parameters[-1] == pytest.approx(DRIFT, abs=2e-3)
    assert found.parameters[SCALE] == 0.0


def test_chains_between_other_runs_make_no_ring_and_may_all_be_true():
    """Of three runs one is joined to each of the others, at places that are far apart on it."""
    way = np.column_stack([0.6 * np.arange(60.0), np.zeros(60), np.zeros(60)])
    trajectories = Trajectories.of(np.tile(way, (3, 1)), np.repeat(np.arange(3), 60), np.arange(3))
    near, far = np.arange(5, 10), np.arange(50, 55)
    closures = Closures(
        np.concatenate([60 + near, 120 + near]),
        np.concatenate([near, far]),
        np.zeros((10, 3)),
        np.ones(10),
        np.repeat(np.arange(2), 5),
    )
    found = agree(trajectories, closures, Prior.unknown())
    np.testing.assert_array_equal(found.chains, [0, 1])
    assert (found.weight, found.rival) == (10.0, 0.0)


def test_a_way_is_as_uncertain_as_its_steps_and_what_they_turn():
    way = np.column_stack([np.arange(3.0), np.zeros((3, 2))])
    trajectories = Trajectories.of(way, np.zeros(3, dtype=np.intp), np.zeros(1, np.intp))
    noise = replace(MotionNoise.default(), per_metre=np.array([4e-4, 2e-4, 1e-3]))
    wander = Wander.of(trajectories, way, noise)
    start, end = np.zeros(2, dtype=np.intp), np.full(2, 2)
    place, heading = wander.between(start, end, np.array([2, 0]))
    # two steps of 3e-4 m² along each axis; turns at 1 m and at 2 m move what lies off them
    np.testing.assert_allclose(place, [6e-4 + 1e-3 * 1.0, 6e-4 + 1e-3 * (1.0 + 4.0)])
    np.testing.assert_allclose(heading, 2e-3)


def test_a_robot_that_stands_is_nearly_certain_to():
    trajectories = Trajectories.of(
        np.zeros((3, 3)), np.zeros(3, dtype=np.intp), np.zeros(1, np.intp)
    )
    nodes = np.arange(3)
    stands = odometry_edges(trajectories, nodes, MotionNoise.default(), nodes)
    np.testing.assert_allclose(stands.information, [1e6 * np.eye(3)] * 2)


def test_deviations_of_closures_are_learnt_from_the_median_of_what_they_miss():
    problem = runs_along_one_way(2)
    weights = np.ones(len(problem.closures))
    start = np.zeros((2, PARAMETERS))
    solution = problem.solve(problem.trajectories.odometry, start, weights)
    moved = problem.trajectories.odometry.copy()
    # of thirty closures the few that miss by far count as any
    moved[30:] += np.outer((-1.0) ** np.arange(30), [0.1, 0.12, 0.05])
    moved[30:36, :2] += 50.0
    problem.learn(replace(solution, poses=moved), np.ones(len(weights), dtype=bool))
    # of a Gaussian half of the values are within 1 / 1.4826 deviations
    expected = 1.4826 * np.array([0.1, 0.12, 0.05])
    np.testing.assert_allclose(problem.deviation[0], expected, rtol=0.1)
    np.testing.assert_array_equal(problem.deviation[1], DEVIATION)


def runs_along_one_way(runs, images=30):
    """Return runs along one straight way, every pair of whose images of a place is a closure."""
    way = np.column_stack([0.6 * np.arange(images), np.zeros(images), np.zeros(images)])
    number = np.repeat(np.arange(runs), images)
    trajectories = Trajectories.of(np.tile(way, (runs, 1)), number, np.arange(runs))
    first, second, chain = [], [], []
    for later in range(runs):
        for earlier in range(later):
            first.append(later * images + np.arange(images))
            second.append(earlier * images + np.arange(images))
            chain.append(np.full(images, len(chain)))
    first, second, chain = (np.concatenate(each) for each in (first, second, chain))
    count = len(first)
    closures = Closures(first, second, np.zeros((count, 3)), np.ones(count), chain)
    noise = MotionNoise.default()
    return Problem(trajectories, np.arange(len(trajectories)), closures, noise, Belief.unknown())


@pytest.mark.parametrize('runs', [2, 3, 12])
def test_all_pairs_of_many_runs_tell_no_more_than_a_few(runs):
    """How surely two runs lie beside each other hardly grows with the runs along that way."""
    uncertain = []
    for problem in (runs_along_one_way(2), runs_along_one_way(runs)):
        weights = np.ones(len(problem.closures))
        start = np.zeros((len(problem.trajectories.run_of_piece), PARAMETERS))
        solution = problem.solve(problem.trajectories.odometry, start, weights)
        covariance = solution.relations(np.array([15]), np.array([45]))[0]
        uncertain.append(np.sqrt(np.diag(covariance)))
    assert np.all(uncertain[1] <= uncertain[0] * (1.0 + 1e-6))
    assert np.all(uncertain[1] > 0.8 * uncertain[0])
