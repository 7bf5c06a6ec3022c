"""When a view that is worth adding joins the map, and when its camera is taken for a dead one."""

from dataclasses import replace
import time

from helpers import textured_image, wall_image
from kbr_localization.localization.map.grow import grown
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps.candidates import least_similarity
from kbr_localization.ros.maps.growing import MapGrowth
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.image_queue import QueuedImage
from map_helpers import tiny_map
import numpy as np
import pytest
from test_ros_growing import answer

CONFIG = NodeConfig(grow_map=True, grow_below=0.8, grow_spacing_d=0.4)


@pytest.fixture
def growth(tiny_world):
    """Growth of a map on which the pose has been sure for a while, and views have matched."""
    made = MapGrowth(lambda: CONFIG, KernelMap.load(tiny_world.map_file))
    for x in np.arange(-1.0, 3.0, 0.2):
        assert made.look(answer(x, 0.9)) is None
    return made


def seen(x, image=None, **told):
    """Return the answer of a view that matches badly, or with another image."""
    there = answer(x, **{'similarity': told.pop('similarity', 0.75)})
    if image is not None:
        there = replace(there, image=QueuedImage(there.stamp_ns, lambda: image, time.monotonic()))
    diagnostics = {**there.estimate.diagnostics, **told}
    return replace(there, estimate=replace(there.estimate, diagnostics=diagnostics))


def test_views_join_where_the_map_is_recognised_behind_them(growth):
    assert growth.look(seen(3.0)) is None
    assert growth.look(seen(3.6)) is None
    kernel_map = growth.look(seen(4.0, similarity=0.9))
    added = grown(kernel_map)
    np.testing.assert_allclose(kernel_map.poses[added][:, 0], [3.0, 3.6])
    expected = [kernel_map.describer.describe(wall_image(x)) for x in (3.0, 3.6)]
    np.testing.assert_array_equal(kernel_map.descriptors[added], expected)
    assert growth.look(seen(4.2, similarity=0.9)) is None, 'they have joined already'


@pytest.mark.parametrize('spoils', [{'status': 'uncertain'}, {'sd': 0.5}], ids=str)
def test_views_do_not_join_when_the_pose_has_been_unsure_since(growth, spoils):
    growth.look(seen(3.0))
    growth.look(answer(3.2, **spoils))
    for x in np.arange(3.4, 6.4, 0.2):
        assert growth.look(seen(x, similarity=0.9)) is None


def test_views_do_not_join_when_the_robot_was_found_elsewhere(growth):
    growth.look(seen(3.0))
    assert growth.look(seen(3.2, similarity=0.9, recoveries=1.0)) is None


def test_what_moves_along_with_the_robot_is_no_view(growth):
    lens_cap = textured_image(7)
    # two places that do not overlap: more than twice the radius of a metre apart
    for x in (3.0, 5.2):
        growth.look(seen(x, lens_cap))
    growth.look(seen(5.8))
    kernel_map = growth.look(seen(6.4, similarity=0.9))
    np.testing.assert_allclose(kernel_map.poses[grown(kernel_map)][:, 0], [5.8])
    assert growth.counts['not added: the view moved along with the robot'] == 2


def test_an_image_that_is_the_last_one_again_says_nothing(growth):
    growth.look(seen(3.0))
    assert growth.look(seen(3.6, similarity=0.9, frozen_images=1.0)) is None
    assert growth.look(seen(3.8, similarity=0.9, frozen_images=1.0)) is not None


def test_an_image_that_is_as_unlike_the_map_as_noise_shows_nothing(growth):
    growth.look(seen(3.0, similarity=0.5))
    assert growth.look(seen(3.6, similarity=0.9)) is None
    assert growth.counts['not added: the view shows nothing, as of a covered camera'] == 1


def test_a_map_of_one_place_does_not_know_how_unlike_views_are():
    kernel_map = tiny_map(frames=5)
    assert least_similarity(kernel_map, wall_image(0.0)) == 0.0
    assert 0.0 < least_similarity(tiny_map(frames=30), wall_image(0.0)) < 1.0
