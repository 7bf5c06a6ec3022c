"""Which images join a map, how it is written, and which maps there are; no messages involved."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import shutil
import sys
import threading
import time

from helpers import START_NS, straight_reference, wall_image
from kbr_localization.errors import ConfigurationError, KbrError, MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.grow import grown
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps import map_keeper
from kbr_localization.ros.maps.map_keeper import MapKeeper
from kbr_localization.ros.parameters.map_files import parse_map_files
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.ros.session.registry import map_id, MapRegistry
import numpy as np
import pytest
from ros_helpers import PATIENCE

GROWING = NodeConfig(grow_map=True, grow_below=0.8, grow_spacing_d=1.0, grow_max_images=5)


def answer(x, similarity=0.75, status='localized', confidence=1.0, sd=0.1, age=0.0, confirmed=1.0):
    pose = straight_reference(2.0 * x)
    estimate = PoseEstimate(
        pose,
        np.diag([sd**2, sd**2, 0.01]),
        confidence,
        status,
        {'best_similarity': similarity, 'map_confirmed': confirmed},
        updated=True,
    )
    stamp_ns = START_NS + round(2e9 * x)
    image = QueuedImage(stamp_ns, lambda: wall_image(x), time.monotonic() - age)
    return Answer(stamp_ns, estimate, pose, image, 0.01)


class Told(list):
    """What was told, without the level."""

    def __call__(self, level, text):
        self.append(text)


class Keeping:
    """A keeper of a tiny map whose background is a real thread."""

    def __init__(self, world, config=GROWING, **options):
        self.told, self.config = Told(), config
        registry = MapRegistry(
            options.get('map_files', ()),
            options.get('into', ''),
            self.told,
            in_place=options.get('in_place', False),
        )
        in_use = registry.read(str(options.get('wanted', world.map_file)))
        self.background = ThreadPoolExecutor(1)
        self.keeper = MapKeeper(in_use, lambda: self.config, self.background, self.told)

    def drive(self, start, end, usual=0.9, **seen):
        """Count the images that are added on the way; most views match as is usual."""
        added = 0
        for x in np.arange(start, end, 0.25):
            for answer_there in (*[answer(x, usual)] * 2, answer(x, **seen)):
                added += self.keeper.look(answer_there) is not None
        return added


@pytest.fixture
def keeping(tiny_world_copy):
    return Keeping(tiny_world_copy)


def test_images_are_added_by_themselves_at_the_spacing_and_up_to_the_limit(keeping):
    assert keeping.drive(0.0, 2.0) == 0  # not sure for long enough
    assert keeping.drive(2.0, 4.9) == 3
    assert keeping.drive(2.0, 4.9) == 0  # all near ones that were added
    assert keeping.drive(5.0, 9.0) == 2
    facts = keeping.keeper.facts()
    assert facts['images'] == 45 and facts['images added in all'] == 5
    assert facts['images added by itself'] == 5
    assert facts['images not added: near one that was added'] > 0
    assert facts['images not added: grow_max_images reached'] > 0


@pytest.mark.parametrize(
    'seen',
    [{'similarity': 0.85}, {'status': 'uncertain'}, {'confidence': 0.9}, {'sd': 0.3}],
    ids=str,
)
def test_nothing_is_added_where_the_match_is_good_or_the_pose_unsure(keeping, seen):
    assert keeping.drive(0.0, 8.0, **seen) == 0


def test_an_odometry_that_was_reset_is_no_way(keeping):
    for x in np.arange(0.0, 1.8, 0.05):
        for similarity in (0.9, 0.75):
            there = answer(x, similarity)
            away = np.array([50.0 if x > 0.2 else 0.0, 0.0, 0.0])
            there = replace(there, odometry=there.odometry + away, continued=there.odometry)
            assert keeping.keeper.look(there) is None


def test_in_another_light_where_all_views_match_badly_nothing_is_added_by_itself(keeping):
    assert keeping.drive(0.0, 8.0, usual=0.75) == 0
    assert keeping.keeper.facts()[
        'images not added: nearly all views match badly, as in another light'
    ]
    keeping.keeper.add(answer(8.0, similarity=0.5))


def test_without_proof_of_the_map_nothing_is_added_or_written(keeping, tiny_world_copy):
    before = sorted(tiny_world_copy.map_file.parent.iterdir())
    assert keeping.drive(0.0, 8.0, confirmed=0.0) == 0
    said = 'images not added: no proof yet that the robot is on this map'
    assert keeping.keeper.facts()[said] > 0
    keeping.keeper.save()
    assert sorted(tiny_world_copy.map_file.parent.iterdir()) == before


def test_by_default_the_added_images_are_beside_the_map_which_stays_as_it_is(tiny_world_copy):
    before, path = tiny_world_copy.map_file.read_bytes(), tiny_world_copy.map_file
    keeping = Keeping(tiny_world_copy)
    keeping.drive(0.0, 6.0)
    beside = path.with_name('map_grown.h5')
    assert keeping.keeper.save() == str(beside)
    assert path.read_bytes() == before
    again = Keeping(tiny_world_copy)
    assert len(again.keeper.in_use.kernel_map) == 44
    assert any('4 images that were added' in text for text in again.told)
    beside.unlink()
    assert len(Keeping(tiny_world_copy).keeper.in_use.kernel_map) == 40


def test_growth_is_off_by_default_and_ends_when_the_parameter_says_so(tiny_world_copy):
    keeping = Keeping(tiny_world_copy, NodeConfig())
    assert keeping.drive(0.0, 8.0) == 0
    keeping.config = GROWING
    assert keeping.drive(0.0, 8.0) == 5


@pytest.mark.parametrize(
    'seen, says',
    [
        (None, 'no image has been used'),
        ({'age': 3.0}, r'the last is 3\.\d s old'),
        ({'status': 'uncertain'}, 'not sure .uncertain'),
        ({'sd': 0.5}, r'standard deviation 0\.50 m'),
    ],
    ids=str,
)
def test_an_image_on_request_needs_a_sure_pose_and_an_image(keeping, seen, says):
    with pytest.raises(KbrError, match=says):
        keeping.keeper.add(seen and answer(1.0, **seen))


def test_an_image_on_request_needs_neither_spacing_nor_a_bad_match(tiny_world_copy):
    keeping = Keeping(tiny_world_copy, NodeConfig(grow_max_images=2))
    for _ in range(2):
        keeping.keeper.add(answer(1.0, similarity=1.0, age=0.1))
    with pytest.raises(KbrError, match='raise grow_max_images'):
        keeping.keeper.add(answer(1.0))


def test_the_map_file_is_replaced_as_a_whole_and_read_at_the_next_start(tiny_world_copy):
    keeping = Keeping(tiny_world_copy, in_place=True)
    name = keeping.keeper.in_use.map_id
    keeping.drive(0.0, 6.0)
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 40
    keeping.keeper.save()
    assert keeping.keeper.facts()['images added and not yet written'] == 0
    again = Keeping(tiny_world_copy, in_place=True)
    assert grown(again.keeper.in_use.kernel_map).sum() == 4
    assert again.keeper.in_use.map_id == name, 'a saved pose would be lost'
    assert again.drive(0.0, 6.0) == 0, 'what was added in an earlier run is near as well'


def test_with_a_folder_to_grow_into_the_map_file_stays_as_it_is(tiny_world_copy, tmp_path):
    before = tiny_world_copy.map_file.read_bytes()
    into = tmp_path / 'grown'
    keeping = Keeping(tiny_world_copy, into=str(into))
    keeping.drive(0.0, 6.0)
    assert keeping.keeper.save() == str(into / 'map.h5')
    assert tiny_world_copy.map_file.read_bytes() == before
    again = Keeping(tiny_world_copy, into=str(into))
    assert len(again.keeper.in_use.kernel_map) == 44
    base = KernelMap.load(tiny_world_copy.map_file)
    replace(base, filter_config=KbrConfig(points=77)).save(tiny_world_copy.map_file)
    tuned = Keeping(tiny_world_copy, into=str(into)).keeper.in_use.kernel_map
    assert (len(tuned), tuned.filter_config.points) == (44, 77)
    KernelMap.load(tiny_world_copy.map_file).subset(np.arange(1, 30)).save(
        tiny_world_copy.map_file
    )
    rebuilt = Keeping(tiny_world_copy, into=str(into))
    assert len(rebuilt.keeper.in_use.kernel_map) == 29
    assert any('which was built anew' in text for text in rebuilt.told)
    (into / 'map.h5').write_bytes(b'damaged')
    damaged = Keeping(tiny_world_copy, into=str(into))
    assert len(damaged.keeper.in_use.kernel_map) == 29
    assert any('without what was added' in text for text in damaged.told)


def test_a_map_that_cannot_be_written_is_told_and_written_later(tiny_world_copy, tmp_path):
    (tmp_path / 'taken').write_text('a file, no folder')
    keeping = Keeping(tiny_world_copy, into=str(tmp_path / 'taken'))
    assert any('cannot be written' in text and 'grow_into' in text for text in keeping.told)
    keeping.drive(0.0, 6.0)
    with pytest.raises(MapError):
        keeping.keeper.save()
    assert keeping.keeper.failure and keeping.keeper.facts()['images added and not yet written']
    (tmp_path / 'taken').unlink()
    keeping.keeper.save()
    assert not keeping.keeper.failure
    assert len(KernelMap.load(tmp_path / 'taken' / 'map.h5')) == 44


def test_images_that_join_while_the_others_cannot_be_written_are_written_with_them(
    tiny_world_copy, monkeypatch
):
    keeping, save = Keeping(tiny_world_copy, in_place=True), KernelMap.save

    def fail_once(kernel_map, path):
        monkeypatch.setattr(KernelMap, 'save', save)
        keeping.drive(4.0, 9.0)
        raise MapError('the disk is full')

    keeping.drive(0.0, 4.0)
    monkeypatch.setattr(KernelMap, 'save', fail_once)
    with pytest.raises(MapError, match='the disk is full'):
        keeping.keeper.save()
    keeping.keeper.save()
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 45


@pytest.mark.parametrize('grows', [False, True])
def test_nothing_is_told_of_a_place_that_can_be_written_or_is_not_needed(
    tiny_world_copy, tmp_path, grows
):
    (tmp_path / 'taken').write_text('a file, no folder')
    into = tmp_path / 'new' / 'folder' if grows else tmp_path / 'taken'
    keeping = Keeping(tiny_world_copy, replace(GROWING, grow_map=grows), into=str(into))
    assert into.is_dir() == grows
    assert not any('written' in text for text in keeping.told)


def test_a_slow_disk_holds_up_nobody_and_gets_everything_in_the_end(tiny_world_copy, monkeypatch):
    monkeypatch.setattr(map_keeper, 'SAVE_SECONDS', 0.0)
    keeping, disk = Keeping(tiny_world_copy, in_place=True), threading.Event()
    keeping.background.submit(disk.wait, 30.0)
    assert keeping.drive(0.0, 9.0) == 5
    assert keeping.keeper.facts()['images added and not yet written'] == 5
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 40
    disk.set()
    keeping.background.shutdown()
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 45
    assert keeping.keeper.facts()['images added and not yet written'] == 0


def test_of_two_threads_that_write_the_one_with_fewer_images_does_not_end_last(
    tiny_world_copy, monkeypatch
):
    keeping = Keeping(tiny_world_copy, in_place=True)
    begun, save = threading.Event(), KernelMap.save

    def save_slowly_once(kernel_map, path):
        if not begun.is_set():
            begun.set()
            time.sleep(0.5)
        save(kernel_map, path)

    monkeypatch.setattr(KernelMap, 'save', save_slowly_once)
    keeping.drive(0.0, 4.0)
    keeping.background.submit(keeping.keeper.save)
    assert begun.wait(PATIENCE)
    keeping.drive(4.0, 9.0)
    keeping.keeper.save()
    keeping.background.shutdown()
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 45


def test_the_facts_can_be_asked_for_while_the_worker_counts(keeping):
    counts, enough = keeping.keeper._growth.counts, threading.Event()

    def count():
        while not enough.is_set():
            counts.update(f'reason {index}' for index in range(300))
            counts.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    keeping.background.submit(count)
    try:
        for _ in range(3000):
            assert keeping.keeper.facts()['images'] == 40
    finally:
        enough.set()
        sys.setswitchinterval(interval)


def test_another_map_starts_with_its_own_growth_and_the_old_one_is_written(
    tiny_world_copy, tmp_path
):
    keeping = Keeping(tiny_world_copy, in_place=True)
    keeping.drive(0.0, 6.0)
    other = KernelMap.load(tiny_world_copy.map_file).subset(np.arange(30))
    other.save(tmp_path / 'other.h5')
    keeping.keeper.use(MapRegistry((), '', keeping.told).read(str(tmp_path / 'other.h5')))
    keeping.background.shutdown()
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 44
    assert keeping.keeper.facts()['images'] == 30
    assert keeping.keeper.facts()['images added in all'] == 0


def test_what_cannot_be_written_of_a_map_that_is_left_is_told_to_be_lost(
    tiny_world_copy, tmp_path
):
    (tmp_path / 'taken').write_text('a file, no folder')
    keeping = Keeping(tiny_world_copy, into=str(tmp_path / 'taken'))
    keeping.drive(0.0, 6.0)
    with pytest.raises(MapError):
        keeping.keeper.save()
    other = shutil.copy(tiny_world_copy.map_file, tmp_path / 'other.h5')
    keeping.keeper.use(Keeping(tiny_world_copy, wanted=other).keeper.in_use)
    keeping.background.shutdown()
    assert any('4 added images are lost with the map left' in text for text in keeping.told)
    assert not keeping.keeper.failure
    assert keeping.keeper.facts()['images added and not yet written'] == 0


def test_maps_are_found_by_name_and_the_first_is_the_default(tiny_world, tmp_path):
    kernel_map = KernelMap.load(tiny_world.map_file)
    kernel_map.subset(np.arange(30)).save(tmp_path / 'map.h5')
    registry = MapRegistry(
        (f'ground={tiny_world.map_file}', f'first={tmp_path}/map.h5'), '', Told()
    )
    assert (registry.read('').name, len(registry.read('').kernel_map)) == ('ground', 40)
    assert len(registry.read('first').kernel_map) == 30
    assert len(registry.read(str(tmp_path / 'map.h5')).kernel_map) == 30
    with pytest.raises(MapError, match='names out of map_files: ground, first'):
        registry.read('second')
    into = MapRegistry(registry_entries(registry), str(tmp_path / 'into'), Told())
    paths = {into.read(name).file.path for name in ('ground', 'first')}
    assert len(paths) == 2, 'two maps of one file name would overwrite each other'


def test_a_map_without_statistics_is_measured_once_when_it_is_read(tiny_world, tmp_path):
    kernel_map = KernelMap.load(tiny_world.map_file).subset(np.arange(30))
    kernel_map.save(tmp_path / 'map.h5')
    told = Told()
    read = MapRegistry((), '', told).read(str(tmp_path / 'map.h5'))
    assert read.kernel_map.statistics is not None
    assert any('kbr map measure' in line for line in told)


def test_maps_that_are_not_there_are_told_at_the_start(tmp_path):
    (tmp_path / 'floor1.h5').touch()
    told = Told()
    MapRegistry([f'floor{n}={tmp_path}/floor{n}.h5' for n in (1, 2, 3)], '', told)
    missing = f'floor2={tmp_path}/floor2.h5, floor3={tmp_path}/floor3.h5'
    assert f'no such file of map_files: {missing}: correct' in told[0]


def registry_entries(registry):
    return tuple(f'{name}={path}' for name, path in registry.paths.items())


def test_map_ids_tell_maps_apart(tiny_world):
    kernel_map = KernelMap.load(tiny_world.map_file)
    other = replace(kernel_map, poses=kernel_map.poses + 1.0)
    assert map_id(kernel_map) != map_id(other)


@pytest.mark.parametrize(
    'entries, says',
    [
        (('ground',), 'expected name=path'),
        (('ground=',), 'expected name=path'),
        (('1st floor=/a.h5',), 'expected name=path with a name of letters'),
        (('a__b=/a.h5',), 'expected name=path with a name of letters'),
        (('a=/a.h5', 'a=/b.h5'), 'two maps are called'),
    ],
)
def test_bad_entries_of_map_files_are_refused(entries, says):
    with pytest.raises(ConfigurationError, match=says):
        parse_map_files(entries)
    with pytest.raises(ConfigurationError, match=says):
        NodeConfig(map_files=entries)
