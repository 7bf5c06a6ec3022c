"""Which images update a belief."""

from kbr_localization import se2
from kbr_localization.localization.update_gate import UpdateGate
import numpy as np
import pytest


def used(gate, steps):
    """Count the ways (metres or radians) between updates for images after each of the steps."""
    ways, way = [], np.zeros(3)
    gate.restart()
    for step in steps:
        assert gate.would_be_due(step) == (gate.add(step) or gate.due())
        way = way + step
        if gate.due():
            ways.append(way)
            way = np.zeros(3)
            gate.restart()
    return np.array(ways)


@pytest.mark.parametrize('axis, wanted', [(0, 0.4), (2, 0.15)])
def test_the_image_nearest_to_the_wanted_way_counts(axis, wanted):
    """Waiting for a full way would let a camera that is just short of it skip every other one."""
    gate = UpdateGate(0.4, 0.15)
    for share in (0.99, 0.74, 0.26, 0.13, 0.02):
        step = np.zeros(3)
        step[axis] = share * wanted
        ways = used(gate, [step] * 500)[:, axis]
        np.testing.assert_allclose(ways, ways[0])
        assert abs(ways[0] - wanted) <= 0.5 * step[axis] + 1e-9


def test_a_robot_at_rest_is_not_updated_after_a_long_step():
    gate = UpdateGate(0.4, 0.15)
    assert len(used(gate, [np.array([3.0, 0.0, 1.0]), *[np.zeros(3)] * 50])) == 1


@pytest.mark.parametrize('axis', [0, 1, 2], ids=['ahead', 'aside', 'heading'])
def test_a_pose_that_jitters_about_one_place_makes_no_way(axis):
    gate = UpdateGate(0.4, 0.15)
    poses = np.zeros((500, 3))
    wanted = (0.4, 0.4, 0.15)[axis]
    poses[1:, axis] = 0.02 * wanted * np.random.default_rng(0).standard_normal(499)
    assert len(used(gate, list(se2.between(poses[:-1], poses[1:])))) == 0
    assert gate.metres < 0.1 * 0.4


def test_the_way_is_that_of_every_step_however_small():
    gate = UpdateGate(0.4, 0.15)
    for _ in range(30):
        gate.add(np.array([0.01, 0.0, 0.001]))
    assert gate.metres == pytest.approx(0.3, rel=1e-3)
    gate.restart()
    assert gate.metres == 0.0


def test_driving_to_and_fro_counts_as_way():
    gate = UpdateGate(0.4, 0.15)
    steps = [np.array([0.1, 0.0, 0.0]), np.array([-0.1, 0.0, 0.0])] * 50
    assert len(used(gate, steps)) == 25
