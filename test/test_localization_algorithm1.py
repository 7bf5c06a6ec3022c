"""The printed algorithm where a belief leaves the map."""

from kbr_localization import se2
from kbr_localization.localization.methods.algorithm1 import MapPoseFilter
from kbr_localization.localization.motion import estimate_noise
from map_helpers import map_along, straight
import numpy as np
import pytest


@pytest.fixture(scope='module')
def corridor():
    """Map of a straight way of 15 m."""
    return map_along(np.array([straight(x) for x in np.arange(0.0, 15.0, 0.5)]))


def seen_from(kernel_map, x):
    return 0.6 + 0.3 * np.exp(-np.abs(kernel_map.poses[:, 0] - x) / 0.5)


def test_a_pose_far_from_the_map_leaves_it_anywhere_on_it(corridor):
    localizer = MapPoseFilter(corridor)
    localizer.initialize(np.array([0.0, 100.0, 0.0]), np.diag([0.1, 0.1, 0.05]) ** 2)
    np.testing.assert_allclose(localizer.alpha, 1.0 / len(corridor))
    assert localizer.why['restarts'] == 1
    localizer.update_similarities(seen_from(corridor, 4.0))
    assert np.isfinite(localizer.estimate().pose).all()


def test_odometry_that_leaves_the_map_leaves_it_anywhere_on_it(corridor):
    localizer = MapPoseFilter(corridor)
    localizer.initialize(straight(10.0), np.diag([0.1, 0.1, 0.05]) ** 2)
    assert localizer.why['restarts'] == 0
    localizer.predict(straight(800.0))
    assert localizer.why['restarts'] == 1
    for _ in range(5):
        localizer.update_similarities(seen_from(corridor, 4.0))
    assert abs(localizer.estimate().pose[0] - 4.0) < 1.5


def test_the_variances_of_a_step_are_those_about_the_drift():
    """Odometry that always turns too far by the same angle is as good as one that does not."""
    rng = np.random.default_rng(0)
    steps = np.column_stack([np.full(400, 0.2), np.zeros(400), rng.normal(0.0, 0.03, 400)])
    reference = se2.chain(np.zeros(3), steps)
    found = []
    for drift in (0.0, 0.05):
        odometry = steps + rng.normal(0.0, 1e-3, steps.shape)
        odometry[:, 2] += drift * odometry[:, 0]
        found.append(estimate_noise([(se2.chain(np.zeros(3), odometry), reference)]).step)
    np.testing.assert_allclose(found[1], found[0], rtol=0.5)
