import contextlib
import os
import pickle
import shutil
import sqlite3
import struct
import subprocess
import sys
import tracemalloc

from bag_helpers import (
    at_times,
    bag,
    compressed,
    drive,
    image,
    images,
    odometry,
    odometry_in_map,
    pose_covariance,
    pose_of,
    pose_stamped,
    SECOND,
    stamp_of,
    STORAGES,
    write_messages,
)
import cv2
from helpers import START_NS, textured_image, tiny_frames, tiny_odometry, write_tiny_cold_run
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.bag_reader import deserialize
from kbr_localization.datasets.cold import ColdRun
from kbr_localization.datasets.image_file import encode_jpeg
from kbr_localization.datasets.pose_message import header_stamp_ns, planar_pose
from kbr_localization.datasets.rosbag import BagRun, write_bag
from kbr_localization.datasets.selection import of_another_clock
from kbr_localization.errors import DatasetError
from kbr_localization.simulation import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
)
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
import yaml


@pytest.fixture
def cold(tmp_path):
    return ColdRun(write_tiny_cold_run(tmp_path / 'cold', frames=6, shape=(48, 64)))


def assert_same_frames(run, original):
    assert len(run) == len(original)
    for frame, expected in zip(run, original, strict=True):
        assert frame.stamp_ns == expected.stamp_ns
        np.testing.assert_allclose(frame.odometry, expected.odometry, atol=1e-9)
        np.testing.assert_allclose(frame.reference, expected.reference, atol=1e-9)
        np.testing.assert_array_equal(frame.load_image(), expected.load_image())


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('transport', ['compressed', 'raw'])
@pytest.mark.parametrize('colour', [False, True])
def test_a_cold_run_survives_the_way_through_a_bag(tmp_path, storage, transport, colour):
    path = write_tiny_cold_run(tmp_path / 'cold', frames=4, shape=(48, 64), colour=colour)
    original = ColdRun(path)
    assert write_bag(original, tmp_path / 'bag', storage, transport) == {}
    run = open_dataset(tmp_path / 'bag')
    assert isinstance(run, BagRun)
    assert isinstance(run, Dataset)
    assert (run.name, run.skipped) == ('bag', {})
    assert_same_frames(run, original)
    np.testing.assert_array_equal(run.odometry.stamps_ns, original.odometry.stamps_ns)
    np.testing.assert_allclose(run.odometry.poses, original.odometry.poses, atol=1e-9)


def test_a_bag_becomes_the_same_bag_and_keeps_the_jpegs(cold, tmp_path):
    write_bag(cold, tmp_path / 'one', 'mcap')
    write_bag(BagRun(tmp_path / 'one'), tmp_path / 'two', 'sqlite3')
    copy = BagRun(tmp_path / 'two')
    assert_same_frames(copy, cold)
    assert copy[2].image.encoded() == cold[2].image.encoded()


def test_a_rendered_run_becomes_a_bag(tmp_path):
    building = SyntheticBuilding(BuildingConfig(width=64, height=48, texture=16, size=14.0))
    rendered = SyntheticRun(building, RunConfig(seconds=3.0))
    write_bag(rendered, tmp_path / 'bag', image_transport='raw')
    assert_same_frames(BagRun(tmp_path / 'bag'), rendered)


@pytest.mark.parametrize('storage', STORAGES)
def test_one_file_of_a_bag_is_enough(cold, tmp_path, storage):
    write_bag(cold, tmp_path / 'bag', storage)
    file = next(file for file in (tmp_path / 'bag').iterdir() if file.suffix != '.yaml')
    assert_same_frames(open_dataset(file), cold)
    (tmp_path / 'bag' / 'metadata.yaml').unlink()
    assert_same_frames(open_dataset(tmp_path / 'bag'), cold)
    shutil.copy(file, file.with_name('second' + file.suffix))
    with pytest.raises(DatasetError, match=r'no metadata.yaml in .* and 2 storage files'):
        open_dataset(tmp_path / 'bag')


GREY = textured_image(3, (6, 8))
COLOUR = textured_image(4, (6, 8, 3))
WITH_ALPHA = np.dstack([COLOUR, np.full((6, 8), 7, np.uint8)])


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize(
    ('encoding', 'stored', 'expected'),
    [
        ('mono8', GREY, GREY),
        ('bgr8', COLOUR, COLOUR),
        ('rgb8', COLOUR[..., ::-1], COLOUR),
        ('bgra8', WITH_ALPHA, COLOUR),
        ('rgba8', WITH_ALPHA[..., [2, 1, 0, 3]], COLOUR),
        *[(f'bayer_{p}8', np.full((6, 8), 90, np.uint8), np.full((6, 8, 3), 90, np.uint8))
          for p in ('rggb', 'bggr', 'gbrg', 'grbg')],
    ],
)  # fmt: skip
def test_every_encoding_is_read(tmp_path, storage, encoding, stored, expected):
    message = image(2 * SECOND, stored, encoding)
    run = BagRun(bag(tmp_path / 'bag', drive(), [('/image', message, None)], storage=storage))
    np.testing.assert_array_equal(run[0].load_image(), expected)


def test_rows_with_padding_are_read(tmp_path):
    padded = np.hstack([GREY, np.full((6, 4), 255, np.uint8)])
    message = image(2 * SECOND, padded)
    message.width = 8
    run = BagRun(bag(tmp_path / 'bag', drive(), [('/image', message, None)]))
    np.testing.assert_array_equal(run[0].load_image(), GREY)


@pytest.mark.parametrize('big_endian', [0, 1])
def test_brightness_of_sixteen_bits_is_read_in_both_byte_orders(tmp_path, big_endian):
    wide = (GREY.astype(np.uint16) << 8 | 5).astype('>u2' if big_endian else '<u2')
    message = image(2 * SECOND, wide, 'mono16')
    message.is_bigendian = big_endian
    run = BagRun(bag(tmp_path / 'bag', drive(), [('/image', message, None)]))
    np.testing.assert_array_equal(run[0].load_image(), GREY)


def test_depth_is_refused_when_the_image_is_loaded(tmp_path):
    message = image(2 * SECOND, GREY.astype(np.uint16), '16UC1')
    run = BagRun(bag(tmp_path / 'bag', drive(), [('/image', message, None)]))
    with pytest.raises(DatasetError, match=r"/image at 2\.0.*'16UC1' is of measurements"):
        run[0].load_image()


@pytest.mark.parametrize('stated', ['16UC1; png compressed ', '32FC1; compressedDepth', '16UC1'])
def test_compressed_depth_is_refused_as_raw_depth_is(tmp_path, stated):
    png = cv2.imencode('.png', GREY.astype(np.uint16) << 8)[1].tobytes()
    messages = [compressed((i + 2) * SECOND, png) for i in range(2)]
    messages[0].format, messages[1].format = stated, 'mono16; png compressed '
    run = BagRun(bag(tmp_path / 'bag', drive(), [('/image', m, None) for m in messages]))
    for read in (run[0].load_image, run[0].image.encoded):
        with pytest.raises(DatasetError, match=r'/image at 2\.0.*is of measurements, as depth'):
            read()
    np.testing.assert_array_equal(run[1].load_image(), GREY)


def test_broken_images_raise_only_when_they_are_loaded(tmp_path):
    short = image(2 * SECOND, GREY)
    short.data = short.data[:20]
    run = BagRun(bag(tmp_path / 'raw', drive(), [('/image', short, None)]))
    with pytest.raises(DatasetError, match='it was cut off'):
        run[0].load_image()
    whole = encode_jpeg(textured_image(1, (48, 64)), 'image')
    sent = [compressed((i + 2) * SECOND, d) for i, d in enumerate([whole, whole[:300], b''])]
    run = BagRun(bag(tmp_path / 'jpeg', drive(4.0), [('/camera', m, None) for m in sent]))
    assert run[0].load_image().shape == (48, 64)
    for frame in (run[1], run[2]):
        with pytest.raises(DatasetError, match=r'broken image /camera at'):
            frame.load_image()


def test_a_bag_without_images(tmp_path):
    path = bag(tmp_path / 'bag', drive())
    with pytest.raises(
        DatasetError, match=r'no images in bag .*sensor_msgs/Image.* got /odom \(nav_msgs/Odometry'
    ):
        BagRun(path)


def test_a_bag_without_odometry(tmp_path):
    path = bag(tmp_path / 'bag', images())
    with pytest.raises(
        DatasetError,
        match=r'no odometry in bag .*nav_msgs/Odometry, or odom -> base_link on /tf, got /image',
    ):
        BagRun(path)


@pytest.mark.parametrize('storage', STORAGES)
def test_an_empty_bag(tmp_path, storage):
    with pytest.raises(DatasetError, match=r'no images in bag .*got no messages'):
        BagRun(write_messages(tmp_path / 'bag', [], storage))


@pytest.mark.parametrize('later', [0, 7_000_000])
def test_a_simulation_that_was_reset_while_recording_is_told(tmp_path, later):
    first = at_times([*drive(4.0), *images(2)])
    second = at_times(
        [*drive(6.0), *[('/image', image(i * SECOND + later), None) for i in (2, 3)]]
    )
    stamps = np.arange(len(first + second)) * 50_000_000
    both = [
        (topic, message, START_NS + int(recorded))
        for (topic, message, _), recorded in zip(first + second, stamps, strict=True)
    ]
    with pytest.raises(DatasetError, match=r'the stamps of /odom .* go back and over the same'):
        BagRun(write_messages(tmp_path / 'bag', both))


@pytest.mark.parametrize('topic', ['/image', '/pose'])
def test_a_clock_that_is_set_back_while_recording_is_told(tmp_path, topic):
    messages = [*drive(30.0), *images(25)]
    messages += [('/pose', pose_stamped(i * SECOND, 0.5 * i), None) for i in range(2, 27)]
    recorded = [(name, message, stamp_of(message)) for name, message, _ in at_times(messages)]
    assert len(BagRun(write_messages(tmp_path / 'good', recorded))) == 25
    for name, message, time_ns in recorded:
        if name == topic and time_ns > 15 * SECOND:
            message.header.stamp.sec -= 7
    with pytest.raises(DatasetError, match=rf'the stamps of {topic} .* go back and over the same'):
        BagRun(write_messages(tmp_path / 'bag', recorded))


def test_stray_stamps_and_a_clock_that_is_set_back_before_the_drive_do_no_harm(tmp_path):
    early = [('/odom', odometry(100 * SECOND + i * 50_000_000, 0.0), None) for i in range(20)]
    stray = [('/odom', odometry(int(s * SECOND), 0.5), None) for s in (99.0, 1.61)]
    later = at_times([*drive(), *images()])
    both = [*early, *later[:20], *stray, *later[20:]]
    recorded = [
        (topic, message, START_NS + i * 50_000_000) for i, (topic, message, _) in enumerate(both)
    ]
    assert len(BagRun(write_messages(tmp_path / 'bag', recorded))) == 3


def test_a_bag_whose_odometry_ends_early(tmp_path):
    run = BagRun(bag(tmp_path / 'bag', drive(2.5), images(4)))
    assert (len(run), run.skipped) == (2, {'no odometry': 2})
    late = [('/image', image(99 * SECOND), None)]
    with pytest.raises(DatasetError, match=r'no image of .* lies within its odometry'):
        BagRun(bag(tmp_path / 'late', drive(2.5), late))


def test_a_bag_of_ros_1_is_told_with_what_converts_it(tmp_path):
    (tmp_path / 'a.bag').write_bytes(b'#ROSBAG V2.0\n')
    with pytest.raises(DatasetError, match=r'is a bag of ROS 1: .*`rosbags-convert --src .*/a`'):
        open_dataset(tmp_path / 'a.bag')


def test_a_missing_or_foreign_bag(tmp_path):
    with pytest.raises(DatasetError, match='no such bag'):
        BagRun(tmp_path / 'nothing')
    for name in ('a.mcap', 'a.db3', 'a.bag', 'a.txt'):
        (tmp_path / name).write_bytes(b'no bag at all' * 100)
        with pytest.raises(DatasetError, match='cannot read bag'):
            BagRun(tmp_path / name)


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('part', [0.0, 0.01, 0.3, 0.6, 0.99])
def test_a_truncated_bag(cold, tmp_path, storage, part):
    write_bag(cold, tmp_path / 'bag', storage)
    file = next(file for file in (tmp_path / 'bag').iterdir() if file.suffix != '.yaml')
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])
    for path in (tmp_path / 'bag', file):
        with pytest.raises(DatasetError, match=r'cannot read bag|no images in bag') as caught:
            for frame in BagRun(path):
                frame.load_image()
        assert '\n' not in str(caught.value)


@pytest.mark.parametrize('folder', [True, False])
def test_messages_in_the_log_of_a_database_are_not_passed_over(tmp_path, folder):
    path = bag(tmp_path / 'bag', drive(), images(), storage='sqlite3')
    (file,) = path.glob('*.db3')
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute('PRAGMA journal_mode=WAL')
        database.execute('DELETE FROM messages WHERE id % 2')
        database.commit()
        killed = shutil.copytree(path, tmp_path / 'killed')
    place = killed if folder else killed / file.name
    with pytest.raises(DatasetError, match=r'its last messages are in bag\.db3-wal, .*`sqlite3 '):
        BagRun(place)
    with contextlib.closing(sqlite3.connect(killed / file.name)) as database:
        database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    assert len(BagRun(place).odometry.stamps_ns) == len(BagRun(path).odometry.stamps_ns)


def test_metadata_that_is_no_yaml_or_says_nothing(cold, tmp_path):
    write_bag(cold, tmp_path / 'bag')
    for text in ('{', '', '- 1', 'rosbag2_bagfile_information: {version: 99}', '\x00\x01'):
        (tmp_path / 'bag' / 'metadata.yaml').write_text(text)
        with pytest.raises(DatasetError, match='cannot read bag') as caught:
            open_dataset(tmp_path / 'bag')
        assert '\n' not in str(caught.value)


@pytest.mark.parametrize('storage', STORAGES)
def test_random_damage_raises_nothing_but_the_rooms_error(cold, tmp_path, storage):
    write_bag(cold, tmp_path / 'bag', storage)
    file = next(file for file in (tmp_path / 'bag').iterdir() if file.suffix != '.yaml')
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    rng = np.random.default_rng(1)
    outcomes = set()
    for _ in range(60):
        damaged = whole.copy()
        places = rng.integers(whole.size, size=int(rng.integers(1, 200)))
        damaged[places] = rng.integers(0, 256, places.size)
        file.write_bytes(damaged.tobytes())
        try:
            for frame in BagRun(file):
                frame.load_image()
            outcomes.add('read')
        except DatasetError:
            outcomes.add('refused')
    assert 'refused' in outcomes


def test_several_image_topics_need_a_choice(tmp_path):
    path = bag(tmp_path / 'bag', drive(), images(2, '/left'), images(3, '/right'))
    with pytest.raises(
        DatasetError,
        match=r'expected one image topic, got /left \(sensor_msgs/Image, 2 messages\), /right .*'
        r'choose one or several with --cameras',
    ):
        BagRun(path)
    assert len(BagRun(path, image_topic='/left')) == 2
    assert len(BagRun(path, image_topic='right')) == 3
    with pytest.raises(DatasetError, match=r"no image topic '/rear': expected one of /left"):
        BagRun(path, image_topic='/rear')


def test_customary_names_win(tmp_path):
    path = bag(
        tmp_path / 'bag', drive(topic='/odom'), drive(topic='/wheel/fast'),
        drive(topic='/ground_truth', frame='world'), images(2, '/image'), images(2, '/debug'),
    )  # fmt: skip
    run = BagRun(path)
    assert run.image_topic.name == '/image'
    assert run.odometry_topic.name == '/odom'
    assert run.reference_topic.name == '/ground_truth'
    run = BagRun(path, odometry_topic='/wheel/fast', reference_topic='/odom')
    assert (run.odometry_topic.name, run.reference_topic.name) == ('/wheel/fast', '/odom')


def test_several_odometry_or_reference_topics_need_a_choice(tmp_path):
    path = bag(tmp_path / 'bag', drive(topic='/a', frame='map'), drive(topic='/b'), images())
    with pytest.raises(
        DatasetError, match=r'expected one odometry topic, got /a .*, /b .* with --odometry-topic'
    ):
        BagRun(path)
    # unless one has the name of a ground truth
    truth = drive(topic='/ground_truth', frame='map')
    run = BagRun(bag(tmp_path / 'named', truth, drive(topic='/wheels'), images()))
    assert (run.odometry_topic.name, run.reference_topic.name) == ('/wheels', '/ground_truth')
    # of two, the other one is taken to be the reference
    run = BagRun(path, odometry_topic='/b')
    assert run.reference_topic.name == '/a'
    path = bag(
        tmp_path / 'bag2', drive(), images(),
        [(f'/pose{i}', pose_stamped(2 * SECOND, 1.0), None) for i in (1, 2)],
    )  # fmt: skip
    with pytest.raises(
        DatasetError,
        match=r'expected one reference topic, got /pose1 .*, /pose2 .* --reference-topic',
    ):
        BagRun(path)


def test_slam_toolbox_is_the_reference_beside_a_fused_odometry(tmp_path):
    slam = [('/pose', pose_covariance(2 * SECOND, 1.0), None)]
    fused = drive(topic='/odometry/filtered', frame='map')
    run = BagRun(bag(tmp_path / 'bag', drive(), fused, slam, images()))
    assert (run.reference_topic.name, run.reference_frame) == ('/pose', 'map')
    assert run.sources == (
        'images on /image', 'odometry on /odom', 'reference poses on /pose (frame map)'
    )  # fmt: skip


@pytest.mark.parametrize('frames', [('odom', 'odom'), ('odom', '/robot/odom'), ('world', 'world')])
def test_what_is_in_the_frame_of_the_odometry_is_a_reference_only_if_chosen(tmp_path, frames):
    own, other = (drive(topic=t, frame=f) for t, f in zip(('/odom', '/ekf'), frames, strict=True))
    path = bag(tmp_path / 'bag', own, other, images())
    run = BagRun(path, odometry_topic='/odom')
    assert run.reference_topic is None
    assert 'the frame of the odometry: /ekf' in run.sources[-1]
    run = BagRun(path, odometry_topic='/odom', reference_topic='/ekf')
    assert run.reference_topic.name == '/ekf'
    # of two, the other one is taken
    truth = [('/truth', pose_stamped(2 * SECOND, 1.0, 'floor'), None)]
    run = BagRun(bag(tmp_path / 'bag2', own, other, truth, images()), odometry_topic='/odom')
    assert run.reference_topic.name == '/truth'


def test_poses_without_a_frame_are_a_reference(tmp_path):
    truth = [('/truth', pose_stamped(2 * SECOND, 1.0, ''), None)]
    run = BagRun(bag(tmp_path / 'bag', drive(frame=''), truth, images()))
    assert run.reference_topic.name == '/truth'


def test_commands_are_no_reference(tmp_path):
    start = [('/initialpose', pose_covariance(2 * SECOND, 1.0), None)]
    goal = [('/robot/goal_pose', pose_stamped(2 * SECOND, 1.0), None)]
    run = BagRun(bag(tmp_path / 'bag', drive(), images(), start, goal))
    assert (run.reference_topic, run.reference_frame) == (None, '')
    assert [frame.reference for frame in run] == [None] * 3


@pytest.mark.parametrize('maker', [pose_stamped, pose_covariance, odometry_in_map])
def test_the_reference_is_interpolated_where_it_is_known(tmp_path, maker):
    known = [('/ground_truth', maker(int(t * SECOND), t), None) for t in (1.5, 2.25, 3.25)]
    run = BagRun(bag(tmp_path / 'bag', drive(4.0), images(4), known))
    assert [frame.reference is None for frame in run] == [False, False, True, True]
    np.testing.assert_allclose([run[index].reference[0] for index in (0, 1)], [2.0, 3.0])


def test_a_reference_with_a_long_gap_is_not_interpolated(tmp_path):
    stands = [pose_covariance(int(t * SECOND), x) for t, x in ((1.5, 1.0), (3.6, 1.1))]
    moves = [pose_covariance(int(t * SECOND), x) for t, x in ((5.5, 2.5), (6.0, 2.7))]
    sent = [('/amcl_pose', message, None) for message in stands + moves]
    run = BagRun(bag(tmp_path / 'bag', drive(6.0), images(5), sent))
    assert [frame.reference is None for frame in run] == [False, False, True, True, False]


@pytest.mark.parametrize('variance', [9999.0, float('nan')])
def test_an_unknown_reference_pose_is_left_out(tmp_path, variance):
    sent = [pose_covariance(2 * SECOND, 0.0, variance), pose_covariance(3 * SECOND, 1.0)]
    poses = [('/amcl_pose', message, None) for message in sent]
    run = BagRun(bag(tmp_path / 'bag', drive(), images(2), poses))
    assert [frame.reference is None for frame in run] == [True, False]
    ((reason, count),) = run.skipped.items()
    assert count == 1
    assert reason == (
        'bad message on /amcl_pose (the first: expected a known pose, got variances of x, y '
        f'[{variance}, {variance}])'
    )
    run = BagRun(bag(tmp_path / 'none', drive(), images(2), poses[:1]))
    assert run.sources[2] == f'no reference poses ({reason})'


def test_a_recorder_may_be_half_a_minute_behind_the_stamps():
    stamps = [100 * SECOND, 200 * SECOND]
    assert of_another_clock(stamps, [70 * SECOND, 230 * SECOND, SECOND]) == {SECOND}


def test_odometry_that_is_not_finite_is_left_out(tmp_path):
    messages = drive()
    messages[7] = ('/odom', odometry(SECOND + 7 * 50_000_000, float('nan')), None)
    messages[9][1].pose.pose.orientation.w = 0.0
    run = BagRun(bag(tmp_path / 'bag', messages, images(1)))
    ((reason, count),) = run.skipped.items()
    assert count == 2
    assert reason.startswith('bad message on /odom (the first: expected a finite pose, got')
    assert np.all(np.isfinite(run.odometry.poses))
    assert len(run.odometry.stamps_ns) == 59
    broken = [('/odom', odometry(SECOND, float('inf')), None)]
    with pytest.raises(
        DatasetError,
        match=r'expected finite poses on /odom .*, got none, but .*: expected a finite',
    ):
        BagRun(bag(tmp_path / 'bad', broken, images(1)))


@pytest.mark.parametrize('variance', [1e6, float('nan'), float('inf'), 'growing'])
def test_odometry_is_taken_whatever_its_covariance(tmp_path, variance):
    """A pose since the start is ever less certain; what is used of it is its increments."""
    messages = drive()
    for number, (_, message, _) in enumerate(messages):
        message.pose.covariance[[0, 7, 35]] = 100.0 * number if variance == 'growing' else variance
    run = BagRun(bag(tmp_path / 'bag', messages, images(2)))
    assert (len(run), run.skipped) == (2, {})
    assert len(run.odometry.stamps_ns) == len(messages)


def test_an_odometry_as_the_reference_has_to_be_known(tmp_path):
    truth = [('/ground_truth', odometry_in_map(int(t * SECOND), t), None) for t in (1.5, 2.5, 3.5)]
    truth[2][1].pose.covariance[[0, 7]] = 1e6
    run = BagRun(bag(tmp_path / 'bag', drive(4.0), images(2), truth))
    assert [frame.reference is None for frame in run] == [False, True]


def test_times_are_those_of_the_headers(tmp_path):
    """Recorded with a delay, and the second image before the first."""
    late = [(topic, m, 100 * SECOND + i) for i, (topic, m, _) in enumerate(drive())]
    swapped = [(topic, m, 200 * SECOND - i) for i, (topic, m, _) in enumerate(images(2))]
    run = BagRun(write_messages(tmp_path / 'bag', [*late, *swapped[::-1]]))
    assert [frame.stamp_ns for frame in run] == [2 * SECOND, 3 * SECOND]
    for index, frame in enumerate(run):
        np.testing.assert_array_equal(frame.load_image(), textured_image(index, (8, 10)))


def test_images_without_a_stamp_have_the_time_of_recording(tmp_path):
    unstamped = [('/image', image(0), 2 * SECOND), ('/image', image(0), 3 * SECOND)]
    run = BagRun(write_messages(tmp_path / 'bag', [*drive(), *unstamped]))
    assert [frame.stamp_ns for frame in run] == [2 * SECOND, 3 * SECOND]


def in_a_simulation(messages):
    """Stamps from zero on, recorded by the clock of a computer."""
    computer = 1_700_000_000 * SECOND
    return [(topic, m, computer + i) for i, (topic, m, _) in enumerate(at_times(messages))]


def test_what_was_sent_before_the_clock_of_a_simulation_came_is_left_out(tmp_path):
    """The time of recording that would stand for its stamp is that of another clock."""
    early = [('/image', image(0), None), *[('/odom', odometry(0, 0.0), None)] * 5]
    early.append(('/amcl_pose', pose_covariance(0, 9.0), None))
    known = [('/amcl_pose', pose_covariance(i * SECOND, 0.3 * i), None) for i in (1, 2, 3, 4)]
    sent = in_a_simulation([*early, *drive(), *images(), *known])
    run = BagRun(write_messages(tmp_path / 'bag', sent))
    assert [frame.stamp_ns for frame in run] == [2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert run.odometry.stamps_ns[[0, -1]].tolist() == [SECOND, 4 * SECOND]
    assert run.fixes.poses[-1, 0] == pytest.approx(1.2)
    names = {'/image': 1, '/odom': 5, '/amcl_pose': 1}
    assert run.skipped == {f'message without a stamp on {name}': n for name, n in names.items()}
    # by one clock they have the time of recording
    near = [('/odom', odometry(0, -0.1), SECOND - 10_000_000), *drive(), *images()]
    run = BagRun(write_messages(tmp_path / 'near', near))
    assert (run.odometry.stamps_ns[0], run.skipped) == (SECOND - 10_000_000, {})


def test_repeated_stamps_are_counted(tmp_path):
    run = BagRun(bag(tmp_path / 'bag', drive(), drive()[:4], images(2), images(1)))
    assert (len(run), run.skipped) == (2, {'repeated stamp on /odom': 4, 'repeated stamp': 1})


@pytest.mark.parametrize('storage', STORAGES)
def test_images_recorded_at_one_time_are_told_apart(tmp_path, storage):
    """As those of a bag are that was recorded in a simulation whose clock stood still."""
    shown = [np.full((8, 10), index, np.uint8) for index in range(70)]
    stamped = [image(SECOND + index * SECOND // 40, one) for index, one in enumerate(shown)]
    sent = [('/image', message, 5 * SECOND) for message in stamped]
    run = BagRun(write_messages(tmp_path / 'bag', [*drive(), *sent], storage))
    for one, frame in zip(shown, run, strict=True):
        np.testing.assert_array_equal(frame.load_image(), one)


def test_frames_may_be_sent_to_another_process(cold, tmp_path):
    write_bag(cold, tmp_path / 'bag')
    frame = pickle.loads(pickle.dumps(BagRun(tmp_path / 'bag')[3]))
    np.testing.assert_array_equal(frame.load_image(), cold[3].load_image())


def test_opening_a_bag_does_not_hold_its_images(tmp_path):
    large = [
        ('/image', image(SECOND + i * 50_000_000, textured_image(i, (480, 640))), None)
        for i in range(40)
    ]
    path = bag(tmp_path / 'bag', drive(), large)
    tracemalloc.start()
    try:
        run = BagRun(path)
        assert sum(frame.load_image().nbytes for frame in run) == 40 * 480 * 640
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()


def test_writing_refuses_a_taken_path_and_unknown_words(cold, tmp_path):
    with pytest.raises(DatasetError, match='exists already'):
        write_bag(cold, cold.path)
    with pytest.raises(DatasetError, match="storage 'rosbag1': expected one of mcap, sqlite3"):
        write_bag(cold, tmp_path / 'bag', 'rosbag1')
    with pytest.raises(DatasetError, match="image_transport 'theora': expected one of"):
        write_bag(cold, tmp_path / 'bag', image_transport='theora')
    assert [path.name for path in tmp_path.iterdir()] == ['cold']


def test_an_interrupted_bag_leaves_nothing(cold, tmp_path):
    def interrupt(what, done, total):
        assert (what, total) == ('writing bag', 6)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bag(cold, tmp_path / 'bag', progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ['cold']


@pytest.mark.parametrize('transport', ['compressed', 'raw'])
def test_images_that_cannot_be_read_are_left_out_of_the_bag(cold, tmp_path, transport, caplog):
    files = sorted((cold.path / 'std_cam').iterdir())
    files[1].unlink()
    assert write_bag(cold, tmp_path / 'bag', image_transport=transport) == {'broken image': 1}
    assert [files[1].name in message for message in caplog.messages] == [True]
    run = BagRun(tmp_path / 'bag')
    assert len(run) == len(run.fixes.stamps_ns) == 5
    for file in files[:1] + files[2:]:
        file.unlink()
    with pytest.raises(DatasetError, match='no image of cold can be read'):
        write_bag(cold, tmp_path / 'none', image_transport=transport)
    assert not (tmp_path / 'none').exists()


def test_a_run_without_reference_has_no_reference_topic(tmp_path):
    class Run(Dataset):
        name, odometry, skipped = 'run', tiny_odometry(2), {}

        def __len__(self):
            return 2

        def __getitem__(self, index):
            frame = tiny_frames(2, (8, 8))[index]
            return Frame(frame.stamp_ns, frame.image, frame.odometry)

    write_bag(Run(), tmp_path / 'bag')
    run = BagRun(tmp_path / 'bag')
    assert run.reference_topic is None
    assert [topic.name for topic in run._bag.topics] == ['/image/compressed', '/odom']


@pytest.mark.parametrize(('frame', 'copied'), [('world', 'world'), ('odom_combined', 'map')])
def test_a_copy_names_the_frame_of_its_reference_poses(tmp_path, frame, copied):
    poses = [('/truth', pose_stamped(n * SECOND, 0.5 * n, frame), None) for n in (1, 2, 3, 4)]
    path = bag(tmp_path / 'bag', drive(), poses, images())
    write_bag(BagRun(path, reference_topic='/truth'), tmp_path / 'copy')
    assert BagRun(tmp_path / 'copy').reference_frame == copied


@pytest.mark.parametrize('storage', STORAGES)
def test_metadata_tell_a_player_what_it_needs(cold, tmp_path, storage):
    write_bag(cold, tmp_path / 'bag', storage, tf=True)
    text = (tmp_path / 'bag' / 'metadata.yaml').read_text()
    metadata = yaml.safe_load(text)['rosbag2_bagfile_information']
    # version 9 is unknown to Humble
    assert metadata['version'] <= 8
    assert metadata['storage_identifier'] == storage
    (file,) = metadata['relative_file_paths']
    assert (tmp_path / 'bag' / file).is_file()
    start = metadata['starting_time']['nanoseconds_since_epoch']
    assert start == cold.odometry.stamps_ns[0]
    assert start + metadata['duration']['nanoseconds'] == cold.odometry.stamps_ns[-1]
    topics = {
        entry['topic_metadata']['name']: (entry['topic_metadata'], entry['message_count'])
        for entry in metadata['topics_with_message_count']
    }
    steps = len(cold.odometry.stamps_ns)
    assert {name: count for name, (_, count) in topics.items()} == {
        '/image/compressed': 6, '/odom': steps, '/reference_pose': 6, '/tf': steps,
    }  # fmt: skip
    for topic, _ in topics.values():
        (qos,) = yaml.safe_load(topic['offered_qos_profiles'])
        # keep last, reliable, volatile, as rmw numbers them
        assert (qos['history'], qos['reliability'], qos['durability']) == (1, 1, 2)
        assert topic['serialization_format'] == 'cdr'


def test_messages_are_recorded_in_order_of_their_stamps(cold, tmp_path):
    write_bag(cold, tmp_path / 'bag', tf=True)
    with Reader(tmp_path / 'bag') as reader:
        recorded = [
            (time, header_stamp_ns(data))
            for connection, time, data in reader.messages()
            if connection.topic != '/tf'
        ]
    assert [time for time, _ in recorded] == sorted(time for time, _ in recorded)
    assert all(time == stamp for time, stamp in recorded)


def test_what_goes_with_an_image_comes_before_it(cold, tmp_path):
    write_bag(cold, tmp_path / 'bag')
    with Reader(tmp_path / 'bag') as reader:
        recorded = [
            (connection.topic, time, data, connection.msgtype)
            for connection, time, data in reader.messages()
            if time == START_NS
        ]
    assert {recorded[0][0], recorded[1][0]} == {'/odom', '/image/compressed'}
    assert recorded[0][0] == '/odom'
    (reference,) = [entry for entry in recorded if entry[0] == '/reference_pose']
    covariance = deserialize(*reference[2:]).pose.covariance.reshape(6, 6)
    np.testing.assert_array_equal(np.diag(covariance), [1e-6, 1e-6, 0, 0, 0, 1e-6])


@pytest.mark.ros
def test_ros_itself_reads_the_messages(cold, tmp_path):
    pytest.importorskip('rclpy')
    from geometry_msgs.msg import PoseWithCovarianceStamped
    from nav_msgs.msg import Odometry
    from rclpy.serialization import deserialize_message
    from sensor_msgs.msg import CompressedImage

    types = {
        '/image/compressed': CompressedImage,
        '/odom': Odometry,
        '/reference_pose': PoseWithCovarianceStamped,
    }
    write_bag(cold, tmp_path / 'bag')
    last = {}
    with Reader(tmp_path / 'bag') as reader:
        for connection, time, data in reader.messages():
            message = deserialize_message(data, types[connection.topic])
            assert message.header.stamp.sec * SECOND + message.header.stamp.nanosec == time
            last[connection.topic] = message
    assert bytes(last['/image/compressed'].data) == cold[5].image.encoded()
    assert last['/image/compressed'].header.frame_id == 'camera'
    assert (last['/odom'].header.frame_id, last['/odom'].child_frame_id) == (
        'odom', 'base_footprint',
    )  # fmt: skip
    assert last['/reference_pose'].header.frame_id == 'map'
    np.testing.assert_allclose(planar_pose(last['/odom'].pose.pose), cold.odometry.poses[-1])
    np.testing.assert_allclose(planar_pose(last['/reference_pose'].pose.pose), cold[5].reference)


def test_stamps_before_zero_are_left_out_and_counted(tmp_path):
    early = [('/image', image(-30_000_000), 0), ('/odom', odometry(-20_000_000, 0.0), 1)]
    run = BagRun(write_messages(tmp_path / 'bag', [*early, *at_times([*drive(), *images()])]))
    assert (len(run), run.odometry.stamps_ns[0]) == (3, SECOND)
    why = 'the first: expected a stamp of zero seconds or more, got -1'
    assert run.skipped == {f'bad message on {name} ({why})': 1 for name in ('/image', '/odom')}
    write_bag(run, tmp_path / 'copy')


def test_without_the_package_rosbags_one_line_says_what_to_do(tmp_path):
    (tmp_path / 'bag.mcap').write_bytes(b'')
    program = (
        'import sys; sys.modules["rosbags"] = None\n'
        'from kbr_localization.datasets import open_dataset\n'
        'from kbr_localization.errors import DatasetError\n'
        'try: open_dataset(sys.argv[1])\n'
        'except DatasetError as error: print(error)'
    )
    command = [sys.executable, '-c', program, str(tmp_path / 'bag.mcap')]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == 'bags need the package rosbags: run `pip install rosbags`\n'


def test_stamps_of_either_byte_order():
    for flag, order in ((1, '<'), (0, '>')):
        data = struct.pack('BBBB', 0, flag, 0, 0) + struct.pack(f'{order}iI', 7, 8)
        assert header_stamp_ns(data) == 7_000_000_008
    with pytest.raises(DatasetError, match='got 4 bytes'):
        header_stamp_ns(b'\x00\x01\x00\x00')


def test_roll_and_pitch_are_dropped():
    tilted = pose_of(1.0, 2.0, 0.0)
    # roll of a quarter turn after a yaw of 0.5
    half, quarter = 0.25, np.pi / 4
    tilted.orientation.w = np.cos(half) * np.cos(quarter)
    tilted.orientation.x = np.cos(half) * np.sin(quarter)
    tilted.orientation.y = np.sin(half) * np.sin(quarter)
    tilted.orientation.z = np.sin(half) * np.cos(quarter)
    np.testing.assert_allclose(planar_pose(tilted), [1.0, 2.0, 0.5])


def test_the_start_of_a_tiny_run_is_kept(cold, tmp_path):
    write_bag(cold, tmp_path / 'bag')
    assert BagRun(tmp_path / 'bag')[0].stamp_ns == START_NS


@pytest.mark.parametrize('name', ['bag.mcap', 'bag.db3', 'bag/metadata.yaml', 'bag/a.mcap'])
def test_a_pipe_or_a_device_in_the_place_of_a_bag_is_refused(tmp_path, name):
    (tmp_path / 'bag').mkdir()
    for make in (os.mkfifo, lambda path: path.symlink_to('/dev/zero')):
        make(tmp_path / name)
        with pytest.raises(DatasetError, match='is a device or a pipe: expected a file'):
            open_dataset((tmp_path / name).parent if '/' in name else tmp_path / name)
        (tmp_path / name).unlink()
