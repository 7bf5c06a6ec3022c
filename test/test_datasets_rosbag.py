"""Bags: what is read of them, chosen, skipped and refused, and what is written."""

import contextlib
from functools import partial
import os
import pickle
import shutil
import sqlite3

from bag_helpers import (
    at_times,
    bag,
    drive,
    image,
    images,
    odometry,
    pose_covariance,
    pose_stamped,
    SECOND,
    STORAGES,
    transforms,
    write_messages,
)
from helpers import START_NS, textured_image, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.bag_reader import stamp_of, TYPESTORE
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import DatasetError
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
import yaml


@pytest.fixture
def cold(tmp_path):
    return open_dataset(write_tiny_cold_run(tmp_path / 'cold', frames=6, shape=(48, 64)))


def assert_same_frames(run, original):
    assert len(run) == len(original)
    for frame, expected in zip(run, original, strict=True):
        assert frame.stamp_ns == expected.stamp_ns
        np.testing.assert_allclose(frame.odometry, expected.odometry, atol=1e-9)
        if expected.reference is not None:
            np.testing.assert_allclose(frame.reference, expected.reference, atol=1e-9)
        np.testing.assert_array_equal(frame.load_image(), expected.load_image())


def storage_file(path):
    return next(file for file in path.iterdir() if file.suffix != '.yaml')


@contextlib.contextmanager
def database(file):
    with contextlib.closing(sqlite3.connect(file)) as opened:
        yield opened.execute
        opened.commit()


@pytest.fixture
def sqlite_bag(tmp_path):
    return bag(tmp_path / 'bag', drive(), images(), storage='sqlite3')


@pytest.mark.parametrize(('storage', 'colour'), [('mcap', True), ('sqlite3', False)])
def test_a_cold_run_survives_the_way_through_a_bag_or_one_file_of_it(tmp_path, storage, colour):
    path = write_tiny_cold_run(tmp_path / 'cold', frames=4, shape=(48, 64), colour=colour)
    original = open_dataset(path)
    assert write_bag(original, tmp_path / 'bag', storage) == {}
    with pytest.raises(DatasetError, match='exists already'):
        write_bag(original, tmp_path / 'bag')
    run, file = open_dataset(tmp_path / 'bag'), storage_file(tmp_path / 'bag')
    assert (run.name, run.skipped) == ('bag', {})
    assert_same_frames(run, original)
    assert run[2].image.encoded() == original[2].image.encoded()
    np.testing.assert_array_equal(run.odometry.stamps_ns, original.odometry.stamps_ns)
    np.testing.assert_allclose(run.odometry.poses, original.odometry.poses, atol=1e-9)
    assert_same_frames(open_dataset(file), original)
    (tmp_path / 'bag' / 'metadata.yaml').unlink()
    assert_same_frames(open_dataset(tmp_path / 'bag'), original)
    shutil.copy(file, file.with_name('second' + file.suffix))
    with pytest.raises(DatasetError, match=r'no metadata.yaml in .* and 2 storage files'):
        open_dataset(tmp_path / 'bag')


@pytest.mark.parametrize('compression', [None, 'bz2', 'lz4'])
def test_bags_of_ros_1_are_read_like_others(tmp_path, compression):
    known = transforms('map', 'base', [(0.1 * i, 2.0, 0.0) for i in range(60)])
    sent = at_times([*drive(), *images(), *known])
    path = write_messages(tmp_path / 'a.bag', sent, compression=compression)
    run, other = open_dataset(path), open_dataset(write_messages(tmp_path / 'bag', sent))
    assert (run.skipped, run.sources) == ({}, other.sources)
    assert run.sources[2] == 'reference poses on /tf (map -> base)'
    assert_same_frames(run, other)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DatasetError, match=r'cannot read bag .*`rosbag reindex` repairs'):
        open_dataset(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ('change', 'why'),
    [
        (lambda _: 'rosbag2_bagfile_information: {version: 99}', ''),
        (lambda whole: f'{whole}more: [{"{}," * 1_500_000}]', 'at most 4194304'),
    ],
)
def test_metadata_that_cannot_be_read_is_refused_in_one_line(cold, tmp_path, change, why):
    write_bag(cold, tmp_path / 'bag')
    file = tmp_path / 'bag' / 'metadata.yaml'
    file.write_text(change(file.read_text()))
    with pytest.raises(DatasetError, match=f'cannot read bag .*{why}') as caught:
        open_dataset(tmp_path / 'bag')
    assert '\n' not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_bag_without_images_or_odometry(tmp_path):
    for name, messages, says in (
        ('a', drive(), r'no images in bag .*sensor_msgs/Image.* got /odom \(nav_msgs/Odometry'),
        ('b', images(), r'no odometry in bag .*or odom -> base_link on /tf, got /image'),
        ('c', [], r'no images in bag .*got no messages'),
    ):
        with pytest.raises(DatasetError, match=says):
            open_dataset(bag(tmp_path / name, messages))


def test_two_times_in_one_bag_are_told(tmp_path):
    """As of a simulation that was reset, and a clock that was set back, while recording."""
    sent = at_times([*drive(4.0), *images(2)])
    again = [(topic, m, START_NS + i) for i, (topic, m, _) in enumerate([*sent, *sent])]
    with pytest.raises(DatasetError, match=r'bag .*bag: the stamps of /\w+ .* go back and over'):
        open_dataset(write_messages(tmp_path / 'bag', again))


def test_a_file_that_is_no_bag(tmp_path):
    for name in ('a.mcap', 'a.db3', 'a.bag'):
        (tmp_path / name).write_bytes(b'no bag at all' * 100)
        with pytest.raises(DatasetError, match='cannot read bag'):
            open_dataset(tmp_path / name)
    for make in (os.mkfifo, lambda path: path.symlink_to('/dev/zero')):
        make(tmp_path / 'b.mcap')
        with pytest.raises(DatasetError, match='is a device or a pipe: expected a file'):
            open_dataset(tmp_path / 'b.mcap')
        (tmp_path / 'b.mcap').unlink()


def test_messages_in_the_log_of_a_database_are_not_passed_over(sqlite_bag, tmp_path):
    with contextlib.closing(sqlite3.connect(storage_file(sqlite_bag))) as opened:
        opened.execute('PRAGMA journal_mode=WAL')
        opened.execute('DELETE FROM messages WHERE id % 2')
        opened.commit()
        killed = shutil.copytree(sqlite_bag, tmp_path / 'killed')
    with pytest.raises(DatasetError, match=r'its last messages are in bag\.db3-wal, .*`sqlite3 '):
        open_dataset(killed)
    with database(killed / 'bag.db3') as execute:
        execute('PRAGMA wal_checkpoint(TRUNCATE)')
    counts = [len(open_dataset(one).odometry.stamps_ns) for one in (killed, sqlite_bag)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    'change', ["data = x'0001'", "data = 'text'", 'data = 7', "timestamp = 'soon'", 'topic_id = 9']
)
def test_a_message_that_cannot_be_read_is_skipped_and_counted(sqlite_bag, change):
    last = 'SELECT max(m.id) FROM messages m JOIN topics t ON topic_id = t.id WHERE name = ?'
    with database(storage_file(sqlite_bag)) as execute:
        for topic in ('/odom', '/image'):
            execute(f'UPDATE messages SET {change} WHERE id = ({last})', (topic,))
    run = open_dataset(sqlite_bag)
    assert len(run) == 2 and list(run.skipped.values()) == [1, 1]
    assert run[1].load_image().shape
    why = 'message missing on /' if 'topic_id' in change else 'bad message on /'
    assert all(reason.startswith(why) for reason in run.skipped)


LEFT_RIGHT = (drive(), images(2, '/left'), images(3, '/right'))
GOALS = [('/robot/goal_pose', pose_stamped(2 * SECOND, 1.0), None)]
TRUTH, IMAGES = drive(topic='/ground_truth', frame='world'), images(2)


def two(first, second):
    """Odometry on /odom and /ekf in two frames."""
    return IMAGES, drive(topic='/odom', frame=first), drive(topic='/ekf', frame=second)


@pytest.mark.parametrize(
    ('sent', 'chosen', 'wheels', 'reference'),
    [
        (LEFT_RIGHT, {'cameras': ['right']}, '/odom', 'no reference poses'),
        # of two, the other one is the reference
        (two('map', 'base'), {'odometry_topic': '/ekf'}, '/ekf', 'reference poses on /odom'),
        ((IMAGES, drive(), GOALS), {}, '/odom', 'no reference poses (expected geometry'),
        (
            (IMAGES, drive(), drive(topic='/wheel/fast'), GOALS, TRUTH, images(2, '/debug')),
            {},
            '/odom',
            'reference poses on /ground_truth (frame world)',
        ),
        # poses in the frame of the odometry are a reference only if chosen
        *(
            (two(*frames), {'odometry_topic': '/odom'} | chosen, '/odom', said)
            for frames in (('odom', 'odom'), ('odom', '/robot/odom'), ('world', 'world'))
            for chosen, said in (
                ({}, 'no reference poses (in the frame of the odometry: /ekf'),
                ({'reference_topic': '/ekf'}, 'reference poses on /ekf'),
            )
        ),
    ],
)
def test_topics_are_chosen_by_custom_or_by_name(tmp_path, sent, chosen, wheels, reference):
    found = open_dataset(bag(tmp_path / 'bag', *sent), **chosen).sources
    camera = chosen.get('cameras', ['image'])[0].strip('/')
    assert found[:2] == (f'images on /{camera}', f'odometry on {wheels}')
    assert found[2].startswith(reference)


@pytest.mark.parametrize(
    ('maker', 'known', 'expected'),
    [
        # moved by the odometry
        (pose_stamped, [(1.5, 1.5), (2.25, 2.0), (3.25, 2.5)], [1.875, 2.375, 2.875, 3.375, None]),
        # back at the place that was left, or so they say
        (partial(odometry, frame='map'), [(1.5, 1), (6.5, 1.1)], [1.25, 1.75, None, 0.35, 0.85]),
    ],
)
def test_the_reference_is_known_near_its_poses(tmp_path, maker, known, expected):
    sent = [('/ground_truth', maker(int(t * SECOND), x), None) for t, x in known]
    run = open_dataset(bag(tmp_path / 'bag', drive(8.0), images(len(expected)), sent))
    found = [None if frame.reference is None else frame.reference[0] for frame in run]
    assert found == [None if x is None else pytest.approx(x) for x in expected]


@pytest.mark.parametrize('variance', [9999.0, float('nan')])
def test_an_unknown_reference_pose_is_left_out(tmp_path, variance):
    sent = [pose_covariance(2 * SECOND, 0.0, variance), pose_covariance(5 * SECOND, 1.0)]
    poses = [('/amcl_pose', message, None) for message in sent]
    run = open_dataset(bag(tmp_path / 'bag', drive(5.0), images(4), poses))
    assert [frame.reference is None for frame in run] == [True, False, False, False]
    ((reason, count),) = run.skipped.items()
    assert count == 1 and 'on /amcl_pose (the first: expected a known pose' in reason
    run = open_dataset(bag(tmp_path / 'none', drive(), images(2), poses[:1]))
    assert run.sources[2] == f'no reference poses ({reason})'


def test_unusable_odometry_is_left_out_whatever_its_covariance(tmp_path):
    messages = drive()
    for number, (_, message, _) in enumerate(messages):  # it grows without end
        message.pose.covariance[[0, 7, 35]] = 100.0 * number
    messages[7] = ('/odom', odometry(SECOND + 7 * 50_000_000, float('nan')), None)
    messages[9][1].pose.pose.orientation.w = 0.0
    run = open_dataset(bag(tmp_path / 'bag', messages, images(1)))
    ((reason, count),) = run.skipped.items()
    assert count == 2
    assert reason.startswith('bad message on /odom (the first: expected a finite pose, got')
    assert len(run.odometry.stamps_ns) == 59


def test_times_are_those_of_the_headers(tmp_path):
    """Recorded with a delay, and the second image before the first."""
    late = [(topic, m, 100 * SECOND + i) for i, (topic, m, _) in enumerate(drive())]
    swapped = [(topic, m, 200 * SECOND - i) for i, (topic, m, _) in enumerate(images(2))]
    run = open_dataset(write_messages(tmp_path / 'bag', [*late, *swapped[::-1]]))
    assert [frame.stamp_ns for frame in run] == [2 * SECOND, 3 * SECOND]
    for index, frame in enumerate(run):
        np.testing.assert_array_equal(frame.load_image(), textured_image(index, (8, 10)))
    negative = [('/image', image(-30_000_000), 0), ('/odom', odometry(-20_000_000, 0.0), 1)]
    sent = [*negative, *at_times([*drive(), *images()])]
    run = open_dataset(write_messages(tmp_path / 'early', sent))
    assert (len(run), run.odometry.stamps_ns[0], list(run.skipped.values())) == (3, SECOND, [1, 1])


def test_messages_without_a_stamp_are_left_out_unless_their_topic_has_none(tmp_path):
    times = [2 * SECOND, 3 * SECOND]
    unstamped = [('/image', image(0), time) for time in times]
    run = open_dataset(bag(tmp_path / 'unstamped', drive(), unstamped))
    assert [frame.stamp_ns for frame in run] == times
    early = [('/image', image(0), 1), *[('/odom', odometry(0, 0.0), 1)] * 5]
    known = [('/amcl_pose', pose_covariance(i * SECOND, 0.3 * i), i + 1) for i in (0, 1, 2, 3, 4)]
    run = open_dataset(bag(tmp_path / 'bag', early, drive(), images(), known))
    assert run.odometry.stamps_ns[[0, -1]].tolist() == [SECOND, 4 * SECOND]
    names = {'/image': 1, '/odom': 5, '/amcl_pose': 1}
    assert run.skipped == {f'message without a stamp on {name}': n for name, n in names.items()}


@pytest.mark.parametrize('storage', STORAGES)
def test_images_recorded_at_one_time_are_told_apart(tmp_path, storage):
    shown = [np.full((8, 10), index, np.uint8) for index in range(70)]
    stamped = [image(SECOND + index * SECOND // 40, one) for index, one in enumerate(shown)]
    sent = [('/image', message, 5 * SECOND) for message in stamped]
    run = open_dataset(write_messages(tmp_path / 'bag', [*drive(), *sent], storage))
    for one, frame in zip(shown, pickle.loads(pickle.dumps(list(run))), strict=True):
        np.testing.assert_array_equal(frame.load_image(), one)


@pytest.mark.parametrize('form', ['cold', 'bag'])
def test_what_is_no_image_is_left_out_of_a_copy(cold, tmp_path, caplog, form):
    def write(out):
        if form == 'bag':
            return write_bag(cold, out)
        return write_cold_run(out, cold, cold.odometry)

    files = sorted((tmp_path / 'cold/std_cam').iterdir())
    files[1].unlink()
    (tmp_path / 'secret').write_text('only for the owner')
    files[2].unlink()
    files[2].symlink_to(tmp_path / 'secret')
    assert write(tmp_path / 'copy') == {'broken image': 2}
    assert [files[1].name in message for message in caplog.messages] == [True]
    run = open_dataset(tmp_path / 'copy')
    assert len(run) == len(run.fixes.stamps_ns) == 4
    for file in (files[0], *files[2:]):
        file.unlink()
    with pytest.raises(DatasetError, match='cannot write a '):
        write(tmp_path / 'none')
    assert not (tmp_path / 'none').exists()


@pytest.mark.parametrize(('frame', 'copied'), [('world', 'world'), ('odom_combined', 'map')])
def test_a_copy_names_the_frame_of_its_reference_poses(tmp_path, frame, copied):
    poses = [('/truth', pose_stamped(n * SECOND, 0.5 * n, frame), None) for n in (1, 2, 3, 4)]
    path = bag(tmp_path / 'bag', drive(), poses, images())
    write_bag(open_dataset(path, reference_topic='/truth'), tmp_path / 'copy')
    assert open_dataset(tmp_path / 'copy').reference_frame == copied


@pytest.mark.parametrize('storage', STORAGES)
def test_a_written_bag_tells_a_player_what_it_needs(cold, tmp_path, storage):
    write_bag(cold, tmp_path / 'bag', storage)
    text = (tmp_path / 'bag' / 'metadata.yaml').read_text()
    metadata = yaml.safe_load(text)['rosbag2_bagfile_information']
    # version 9 is unknown to Humble
    assert metadata['version'] <= 8 and metadata['storage_identifier'] == storage
    with Reader(tmp_path / 'bag') as reader:
        sent = [
            (c.topic, time, stamp_of(TYPESTORE.deserialize_cdr(data, c.msgtype)))
            for c, time, data in reader.messages()
        ]
    times = [time for _, time, _ in sent]
    assert times == sorted(times) == [stamp for _, _, stamp in sent]
    # what belongs to an image comes before it
    first = [topic for topic, time, _ in sent if time == START_NS]
    assert first.index('/odom') < first.index('/image/compressed')
