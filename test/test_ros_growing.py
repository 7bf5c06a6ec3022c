"""Which images join a map, how it is written, and which maps there are; no messages involved."""

from concurrent.futures import ThreadPoolExecutor
import time

from helpers import START_NS, straight_reference, textured_image, wall_image
from kbr_localization.datasets.multi_camera import MultiImage
from kbr_localization.errors import ConfigurationError, MapError
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.grow import added_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.buffers import QueuedImage
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.maps import check_cameras, GrowingMap, open_map
from kbr_localization.ros.session import Answer
import numpy as np
import pytest
from two_cameras import mirrored


def answer(x, similarity=0.75, status='localized', confidence=1.0, sd=0.1, **more):
    """Answer an image at x metres, whose best match has a similarity."""
    pose = straight_reference(2.0 * x)
    image = more.pop('image', None)
    told = {'best_similarity': similarity, 'map_confirmed': 1.0, **more}
    covariance = np.diag([sd**2, sd**2, 0.01])
    estimate = PoseEstimate(pose, covariance, confidence, status, told, updated=True)
    load = (lambda: wall_image(x)) if image is None else lambda: image
    queued = QueuedImage(START_NS + round(2e9 * x), load, time.monotonic())
    return Answer(estimate, queued, pose, pose)


class Growing:
    """A growing map whose background is a real thread."""

    def __init__(self, world, **options):
        growing = {'grow_map': True, 'grow_below': 0.8, 'grow_spacing_d': 1.0}
        self.config = NodeConfig(**growing, grow_max_images=5, **options)
        self.told, self.background = [], ThreadPoolExecutor(1)
        self.log = lambda level, text: self.told.append(text)
        in_use = self.read(str(world.map_file))
        self.map = GrowingMap(in_use, lambda: self.config, self.background, self.log)

    def read(self, wanted):
        return open_map(wanted, self.config, self.log)

    @property
    def size(self):
        return len(self.map.in_use.kernel_map)

    def drive(self, start, end, usual=0.9, **seen):
        """Drive past the wall; most views match as is usual. Return the images added."""
        before = self.size
        for x in np.arange(start, end, 0.25):
            for answer_there in (*[answer(x, usual)] * 2, answer(x, **seen)):
                self.map.process(answer_there)
        return self.size - before


@pytest.fixture
def growing(tiny_world_copy):
    return Growing(tiny_world_copy)


def test_images_join_by_themselves_at_the_spacing_and_up_to_the_limit(growing):
    assert growing.drive(0.0, 2.0) == 0  # not sure for long enough
    assert growing.drive(2.0, 4.9) == 3
    assert growing.drive(2.0, 4.9) == 0  # all near ones that were added
    assert growing.drive(5.0, 9.0) == 2
    facts = growing.map.status_values()
    assert facts['images'] == 45 and facts['images added in all'] == 5
    assert facts['images added by itself'] == 5
    assert facts['images not added: near one that was added'] > 0
    assert facts['images not added: grow_max_images reached'] > 0


@pytest.mark.parametrize(
    'seen',
    [
        {'similarity': 0.85},
        {'status': 'uncertain'},
        {'confidence': 0.9},
        {'sd': 0.3},
        {'usual': 0.75},
        {'map_confirmed': 0.0},
    ],
    ids=str,
)
def test_nothing_joins_where_the_match_is_good_or_something_is_unsure(growing, seen):
    assert growing.drive(0.0, 8.0, **seen) == 0


def ready(growing):
    """Drive until images may join, with views that match."""
    assert growing.drive(0.0, 3.0, similarity=0.9) == 0


def test_views_join_where_the_map_is_recognised_behind_them(growing):
    ready(growing)
    growing.map.process(answer(3.0))
    growing.map.process(answer(4.2))
    assert growing.size == 40
    kernel_map = growing.map.process(answer(4.4, 0.9))
    np.testing.assert_allclose(kernel_map.poses[added_images(kernel_map)][:, 0], [3.0, 4.2])
    expected = [kernel_map.describer.describe(wall_image(x)) for x in (3.0, 4.2)]
    np.testing.assert_array_equal(kernel_map.descriptors[added_images(kernel_map)], expected)


@pytest.mark.parametrize(
    'spoils', [{'status': 'uncertain'}, {'similarity': 0.9, 'recoveries': 1.0}], ids=str
)
def test_views_do_not_join_when_the_pose_has_been_doubted_since(growing, spoils):
    ready(growing)
    growing.map.process(answer(3.0))
    growing.map.process(answer(3.2, **spoils))
    growing.drive(3.4, 7.0, similarity=0.9)
    assert growing.size == 40


def test_a_camera_that_shows_nothing_adds_nothing(growing):
    ready(growing)
    stuck = textured_image(0)
    for x in (3.0, 5.2, 7.4):  # what moves along with the robot is no view
        growing.map.process(answer(x, image=stuck))
    growing.map.process(answer(8.8, frozen_images=1.0))
    growing.map.process(answer(9.0, 0.9, frozen_images=1.0))
    assert growing.size == 40
    facts = growing.map.status_values()
    assert facts['images not added: the view moved along with the robot'] >= 2


def test_the_images_of_all_cameras_join_or_none(two_camera_world, tmp_path):
    topics = ('front/image', 'rear/image')
    growing = Growing(two_camera_world, grow_into=str(tmp_path), image_topics=topics)
    assert growing.drive(0.0, 3.0, similarity=0.81, usual=0.9) == 0
    views = [wall_image(3.0), mirrored(wall_image(3.0))]
    for x, images in ((3.0, [views[0], None]), (4.5, views), (5.0, views)):
        growing.map.process(answer(x, 0.4 if x < 5.0 else 0.9, image=MultiImage(images)))
    assert growing.size == 41
    assert growing.map.status_values()['images not added: a camera has no image'] == 1


def test_by_default_the_added_images_are_beside_the_map_which_stays_as_it_is(tiny_world_copy):
    path = tiny_world_copy.map_file
    before, growing = path.read_bytes(), Growing(tiny_world_copy)
    assert growing.drive(0.0, 6.0) == 4
    beside = path.with_name('map_grown.h5')
    growing.map.save()
    assert path.read_bytes() == before and growing.map.status_values()['images added in all'] == 4
    again = Growing(tiny_world_copy)
    assert again.size == 44 and again.drive(0.0, 6.0) == 0
    assert again.map.in_use.map_id == growing.map.in_use.map_id, 'a saved pose would be lost'
    KernelMap.load(path).subset(np.arange(1, 30)).save(path)
    rebuilt = Growing(tiny_world_copy)
    assert rebuilt.size == 29 and any('was built again' in text for text in rebuilt.told)
    beside.write_bytes(b'damaged')
    damaged = Growing(tiny_world_copy)
    assert damaged.size == 29 and any('without the images added' in text for text in damaged.told)
    in_place = Growing(tiny_world_copy, grow_in_place=True)
    added = in_place.drive(0.0, 6.0)
    in_place.map.save()
    assert added > 0 and len(KernelMap.load(path)) == 29 + added


def test_a_map_that_cannot_be_written_is_told_and_written_later(tiny_world_copy, tmp_path):
    (tmp_path / 'taken').write_text('a file, no folder')
    growing = Growing(tiny_world_copy, grow_into=str(tmp_path / 'taken'))
    growing.drive(0.0, 4.0)
    growing.map.close()
    assert growing.told[1:] == [growing.map.failure] and 'are not written' in growing.told[1]
    growing.drive(4.0, 6.0)
    (tmp_path / 'taken').unlink()
    growing.map.save()
    assert not growing.map.failure
    assert len(KernelMap.load(tmp_path / 'taken' / 'map.h5')) == 44


def test_another_map_starts_with_its_own_growth_and_the_old_one_is_written(
    tiny_world_copy, tmp_path
):
    growing = Growing(tiny_world_copy)
    growing.drive(0.0, 6.0)
    other = KernelMap.load(tiny_world_copy.map_file).subset(np.arange(30))
    other.save(tmp_path / 'other.h5')
    growing.map = growing.map.switch_to(growing.read(str(tmp_path / 'other.h5')))
    growing.background.shutdown()
    assert len(KernelMap.load(tiny_world_copy.map_file.with_name('map_grown.h5'))) == 44
    facts = growing.map.status_values()
    assert (facts['images'], facts['images added in all']) == (30, 0)


def test_of_two_nodes_on_one_map_the_second_adds_only_to_what_the_first_has_written(
    tiny_world_copy,
):
    first, second = (Growing(tiny_world_copy) for _ in range(2))
    assert first.drive(0.0, 3.0) == 1
    assert second.drive(0.0, 3.0) == 0 and 'is being added to by' in second.map.failure
    first.map.close()
    assert second.drive(3.0, 6.0) == 0 and 'load the map again' in second.map.failure
    for _ in range(2):  # the second time it has the claim already
        second.map = second.map.switch_to(second.read(str(tiny_world_copy.map_file)))
        assert second.size == 41
        assert second.drive(3.0, 6.2) == 1
    assert any('images added to the previous map are lost' in text for text in second.told)


def test_maps_are_found_by_name_and_the_first_is_the_default(tiny_world, tmp_path):
    KernelMap.load(tiny_world.map_file).subset(np.arange(30)).save(tmp_path / 'map.h5')
    files = (f'ground={tiny_world.map_file}', f'first={tmp_path}/map.h5')
    told, config = [], NodeConfig(map_files=files, grow_into=str(tmp_path / 'into'))

    def read(wanted):
        return open_map(wanted, config, lambda level, text: told.append(text))

    ground, first = read(''), read('first')
    assert (ground.name, len(ground.kernel_map), len(first.kernel_map)) == ('ground', 40, 30)
    assert ground.map_id != first.map_id and ground.file.path != first.file.path
    assert any('are measured now' in text for text in told), 'a map without statistics'
    with pytest.raises(MapError, match='names in map_files: ground, first'):
        read('second')


@pytest.mark.parametrize(
    'topics, says',
    [
        ((), 'set image_topics to one topic for each camera'),
        (('rear/image', 'front/image'), 'in the order of the map'),
    ],
)
def test_topics_that_do_not_fit_the_cameras_of_a_map_are_refused(tmp_path, topics, says):
    with pytest.raises(ConfigurationError, match=says):
        check_cameras(('front', 'rear'), topics, tmp_path)
