"""How two visits of a place lie beside each other, by points of their images."""

from kbr_localization import se2
from kbr_localization.localization.mapping.loop_closure import (
    Closures,
    find_pose,
    measure_closures,
)
from kbr_localization.localization.mapping.trajectories import Trajectories
from kbr_localization.vision.turning import View
import numpy as np
import pytest

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
    odometry = np.column_stack([0.3 * np.arange(80), np.zeros(80), np.zeros(80)])
    one = np.zeros(1, dtype=np.intp)
    trajectories = Trajectories(odometry, np.zeros(80, dtype=np.intp), one, one > 0)
    ends = np.array([60, 62, 64]), np.array([10, 12, 14])
    closures = Closures(
        *ends, np.full((3, 3), 0.01), np.ones(3), np.arange(3), np.zeros(3, dtype=bool)
    )
    blank = [np.full((240, 320), 128, dtype=np.uint8)] * 80
    seen = measure_closures(trajectories, closures, np.zeros(7), blank, VIEW)
    assert not seen.seen.any()
    np.testing.assert_array_equal(seen.relative, closures.relative)
