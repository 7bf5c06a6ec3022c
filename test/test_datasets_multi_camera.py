"""Runs of several cameras: which images belong together, on disk, in bags and in memory."""

from dataclasses import replace

from helpers import START_NS, tiny_frames
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.multi_camera import (
    camera_name,
    camera_names,
    join_cameras,
    MultiImage,
    side_by_side,
    Synchronizer,
)
from kbr_localization.errors import DatasetError
from map_helpers import TinyRun
import numpy as np
import pytest
from two_cameras import CAMERAS, two_camera_run, write_two_camera_cold_run

MS = 1_000_000


def sets(synchronizer, arrivals):
    """Numbers of milliseconds at which images of cameras arrive, as sets of those numbers."""
    found = []
    for camera, ms in arrivals:
        found += synchronizer.add(camera, START_NS + ms * MS, ms)
    return [items for _, items in found]


def test_what_finds_no_other_within_the_tolerance_is_dropped_and_counted():
    both = Synchronizer(('front', 'rear'), tolerance=0.02)
    assert sets(both, [(0, 0), (1, 30), (0, 100), (1, 101), (1, 150), (0, 200), (1, 200)]) == [
        (100, 101),
        (200, 200),
    ]
    assert both.dropped == {
        'front: no image of rear near': 1,
        'rear: no image of front near': 2,
    }


@pytest.mark.parametrize('lost', [0, 1])
@pytest.mark.parametrize('late', [5, -5])
def test_behind_an_image_that_was_lost_each_goes_with_the_nearest_again(lost, late):
    """At 30 Hz the tolerance is longer than a period."""
    both, times = Synchronizer(('front', 'rear')), range(0, 1000, 33)
    arrivals = [(0, ms) for ms in times] + [(1, ms + late) for ms in times]
    arrivals.remove([(0, 330), (1, 330 + late)][lost])
    found = sets(both, sorted(arrivals, key=lambda arrival: arrival[1]))
    found += [items for _, items in both.finish()]
    assert found == [(ms, ms + late) for ms in times if ms != 330]


@pytest.mark.parametrize('dead', [0, 1])
def test_a_camera_that_falls_silent_is_left_out_until_it_sends_again(dead):
    both, alive = Synchronizer(('front', 'rear')), 1 - dead
    together = [(camera, ms) for ms in range(0, 1000, 100) for camera in (0, 1)]
    alone = [(alive, ms) for ms in range(1000, 4000, 100)]
    again = [(camera, ms) for ms in range(4000, 5000, 100) for camera in (0, 1)]
    found = sets(both, [*together, *alone])
    assert both.silent == [('front', 'rear')[dead]]
    expected = [(ms, ms) for ms in range(0, 1000, 100)]
    expected += [(None, ms) if dead == 0 else (ms, None) for ms in range(1000, 4000, 100)]
    assert found == expected
    found = sets(both, again)
    assert found[-1] == (4900, 4900) and both.silent == []


@pytest.mark.parametrize('first', [0, 1])
def test_cameras_that_stand_still_together_are_not_silent(first):
    both = Synchronizer(('front', 'rear'))
    again = [(first, 60_000), (1 - first, 60_000)]
    assert sets(both, [(0, 0), (1, 0), *again]) == [(0, 0), (60_000, 60_000)]


def test_no_more_than_a_few_images_wait():
    both = Synchronizer(('front', 'rear'), silent=1e6, size=10)
    assert sets(both, [(0, ms) for ms in range(1000)]) == []
    assert both.dropped == {'front: waited too long for other cameras': 990}


def test_stamps_that_jump_back_start_everything_over():
    both = Synchronizer(('front', 'rear'))
    assert sets(both, [(0, 50_000), (1, 50_000), (0, 50_400), (0, 0), (1, 0)])[-1] == (0, 0)
    assert both.dropped == {'before a time jump': 1}


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(-80, 80)), max_size=120
)


@given(ARRIVALS)
def test_whatever_arrives_no_image_is_used_twice_and_all_are_accounted_for(arrivals):
    three = Synchronizer(('a', 'b', 'c'), size=20)
    found = []
    # in the order of arrival, which is nearly that of the stamps
    ordered = [arrival[:2] for arrival in sorted(arrivals, key=lambda a: a[1] + a[2])]
    for number, (camera, ms) in enumerate(ordered):
        found += three.add(camera, START_NS + ms * MS, (number, camera, ms))
    found += three.finish()
    used = [item for _, items in found for item in items if item is not None]
    assert len({number for number, _, _ in used}) == len(used)
    for stamp_ns, items in found:
        stamps = [item[2] for item in items if item is not None]
        assert (stamp_ns - START_NS) // MS == stamps[0]
        assert max(abs(stamp - stamps[0]) for stamp in stamps) <= 50
        assert all(item is None or item[1] == camera for camera, item in enumerate(items))
    left = len(arrivals) - len(used) - sum(three.dropped.values())
    assert 0 <= left <= 3 * 20, 'what is neither used nor dropped waits, and that is bounded'


@pytest.mark.parametrize(
    'place, name',
    [
        ('rear/image_raw/compressed', 'rear'),
        ('/robot/front_camera/color/image_raw', 'front_camera'),
        ('/zed/zed_node/left/gray/rect/image', 'left'),
        ('std_cam', 'std'),
        ('/image', ''),
    ],
)
def test_a_camera_is_called_after_its_topic_or_folder(place, name):
    assert camera_name(place) == name


@pytest.mark.parametrize(
    'places',  # --cameras takes names between commas
    [('front/image', 'front/image_raw'), ('image', 'rear/image'), ('left,right_cam', 'rear_cam')],
)
def test_cameras_of_one_name_are_refused(places):
    with pytest.raises(DatasetError, match='a different name for each'):
        camera_names(places)


def test_images_of_another_size_and_colour_stand_side_by_side():
    grey, colour = np.full((10, 20), 7, np.uint8), np.full((20, 60, 3), (1, 2, 3), np.uint8)
    picture = side_by_side(MultiImage((None, grey, colour)))
    assert picture.shape == (10, 20 + 30, 3)
    assert (picture[:, :20] == 7).all() and (picture[:, 20:] == (1, 2, 3)).all()
    assert side_by_side(MultiImage((grey, grey))).shape == (10, 40)


def test_one_broken_image_leaves_the_other_camera_and_two_are_an_error():
    def broken():
        raise DatasetError('broken')

    front, rear = TinyRun(4), TinyRun(4)
    rear.frames[1] = replace(rear.frames[1], image=broken)
    front.frames[2] = replace(front.frames[2], image=broken)
    rear.frames[2] = replace(rear.frames[2], image=broken)
    run = join_cameras(CAMERAS, [front, rear])
    assert run[1].load_image()[1] is None and run[1].load_image()[0] is not None
    with pytest.raises(DatasetError, match='broken'):
        run[2].load_image()


def test_cameras_of_different_clocks_are_explained():
    late = TinyRun(4)
    late.frames = [replace(f, stamp_ns=f.stamp_ns + 10**12) for f in late.frames]
    with pytest.raises(DatasetError, match='are their stamps of one clock'):
        join_cameras(CAMERAS, [TinyRun(4), late])


def test_a_folder_of_two_recorded_cameras_is_opened_with_both(tmp_path):
    path = write_two_camera_cold_run(tmp_path / 'run', 6)
    run = open_dataset(path)
    assert run.cameras == ('front', 'rear') and len(run) == 6
    assert run[2].load_image()[1].shape == (96, 128)
    assert len(open_dataset(path, ['rear'])[0].load_image()) == 96
    assert open_dataset(path, ['rear', 'front']).cameras == ('rear', 'front')
    with pytest.raises(DatasetError, match='expected one of front_cam, rear_cam'):
        open_dataset(path, ['left'])


def test_a_bag_of_two_cameras_keeps_them(tmp_path):
    assert write_bag(two_camera_run(5), tmp_path / 'bag') == {}
    for chosen, says in ((None, 'one or several with --cam'), (['/left'], "'/left': expected")):
        with pytest.raises(DatasetError, match=says):
            open_dataset(tmp_path / 'bag', chosen)
    topics = [f'/{camera}/image/compressed' for camera in CAMERAS]
    for cameras in (CAMERAS, topics):
        run = open_dataset(tmp_path / 'bag', cameras)
        fronts = ('images on /front', 'images on /rear', 'odometry on /odom', 'reference poses')
        assert [s.startswith(f) for s, f in zip(run.sources, fronts, strict=True)] == [True] * 4
        assert (run.cameras, run.reference_frame, len(run)) == (CAMERAS, 'map', 5)
        front, rear = run[4].load_image()
        assert np.abs(front[:, ::-1].astype(int) - rear).max() < 40
        assert np.allclose(run[4].reference, tiny_frames(5)[4].reference)
