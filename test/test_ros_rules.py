"""What the rules say is wrong with the inputs of a node; no messages involved."""

import time
from types import SimpleNamespace

from kbr_localization.ros.diagnostics import diagnose, TopicMonitor
from kbr_localization.ros.inputs import typical_lead
from kbr_localization.ros.running import NodeLogger
import numpy as np
import pytest

SECOND = 1_000_000_000
NOW = 1_600_000_000 * SECOND


def topic(name='/image', **known):
    return TopicMonitor(name, 'sensor_msgs/msg/Image', 0.0, **{'publishers': 1, **known})


def told(watched, now=10.0, clock_ns=NOW):
    """Return what is said of a topic."""
    watched.update(now, 5.0, clock_ns)
    return [watched.hint] if watched.hint else []


def rules(awaits_motion='', contradiction='', rival='', **known):
    """Return what is said of a node whose inputs are as they should be but for what is known."""
    quiet = ['still', 'unused', 'off_tf', 'lead', 'silent_cameras', 'other_cameras']
    values = dict.fromkeys(quiet, 0)
    values |= {'why_unused': 'bad', 'wanted': 'odom to base', 'parent': 'odom', 'topics': []}
    values |= {'image': topic(), 'topic': topic('/odom'), **known}
    inputs = SimpleNamespace(**values)
    inputs.config, inputs.odometry = SimpleNamespace(odom_frame_id='odom'), inputs
    return diagnose(inputs, awaits_motion, contradiction, rival)


@pytest.mark.parametrize(
    'known, says',
    [
        ({'publishers': 0}, 'publisher count 0: start the sender'),
        ({'publishers': 0, 'other_transport': '/image/compressed'}, 'compressed has one: set'),
        ({'other_types': 'a/msg/B'}, 'published as a/msg/B, expected sensor_msgs/msg/Image'),
        ({'wanted': 'map to odom'}, '1 publishers, none sends map to odom'),
        ({}, '1 publishers, none sends: check the sender'),
    ],
    ids=str,
)
def test_silence_has_a_reason(known, says):
    (line,) = told(topic(**known))
    assert line.startswith('no data for 10 s on /image: ') and says in line


@pytest.mark.parametrize(
    'stamps, says',
    [
        ([0] * 7, 'the stamps do not advance'),
        ([NOW] * 7, 'the stamps do not advance'),
        ([NOW + 60 * SECOND], 'stamps minus the clock of this node: +60 s'),
        ([NOW - 60 * SECOND], 'stamps minus the clock of this node: -60 s'),
        (range(NOW, NOW + 100), ''),
    ],
)
def test_stamps_that_stand_still_or_are_of_another_clock_are_told(stamps, says):
    watched = topic()
    for stamp_ns in stamps:
        watched.add_message(stamp_ns, 9.9)
    lines = told(watched)
    assert len(lines) == bool(says) and says in ''.join(lines)


@pytest.mark.parametrize(
    'arrived, lost, says', [(50, 50, True), (95, 5, False), (0, 2**31, False)]
)
def test_a_stream_that_is_half_lost_is_told_until_it_is_over(arrived, lost, says):
    watched = topic()
    for tick in range(30):
        watched.add_message(NOW + tick, 10.0 + tick)
        if tick == 10:
            watched.count, watched.lost = watched.count + arrived, lost
        lost_now = any('the others are lost' in line for line in told(watched, 10.0 + tick, 0))
        assert lost_now == (says and 10 <= tick <= 20)


def test_a_second_sender_of_the_odometry_is_told_when_it_is_no_dead_one():
    watched = topic('/odom', exclusive=True)
    said = []
    for second in range(40):
        watched.add_message(NOW + second, float(second))
        watched.publishers = 2 if second != 5 else 1
        said.append(any('only one may send' in line for line in told(watched, second, 0)))
    assert not any(said[:35]) and said[39]


def lead(offset, image_rate=10, odometry_rate=50, delay=0.1, seconds=25.0):
    """Return the lead of images whose clock is `offset` ahead, from the last hundred of them."""
    sent = np.arange(0.0, seconds, 1.0 / image_rate)[-100:]
    newest = np.floor((sent + delay) * odometry_rate) / odometry_rate
    return typical_lead(sent + offset - newest)


@pytest.mark.parametrize('offset', [1.5, -1.5, 40.0])
@pytest.mark.parametrize('image_rate, odometry_rate', [(30, 50), (1, 50), (10, 5)])
def test_clocks_that_differ_are_told_in_seconds(offset, image_rate, odometry_rate):
    found = lead(offset, image_rate, odometry_rate)
    (line,) = rules(lead=found)
    assert f'as both arrive: {found:+.1f} s' in line and 'synchronise the clocks' in line
    assert abs(found - offset) < 0.35


@pytest.mark.parametrize(
    'known, says',
    [
        ({'still': 12.0}, ''),
        ({'still': 9.0, 'awaits_motion': 'it waits'}, ''),
        ({'still': 12.0, 'awaits_motion': 'it waits'}, 'still for 12 s, and it waits: drive on'),
        ({'contradiction': 'the images change while'}, '/odom: the images change while'),
        ({'lead': lead(0.0)}, ''),
        ({'lead': lead(0.0, delay=0.6)}, ''),
        ({'lead': lead(0.0, odometry_rate=1)}, ''),
        ({'lead': lead(9.0, seconds=1.5)}, ''),
        ({'silent_cameras': 'rear', 'other_cameras': 'front'}, 'rear: using front alone'),
        ({'unused': 5}, '/odom: none of the last 5 messages could be used: bad'),
        ({'unused': 2}, ''),
        ({'parent': 'a'}, "/odom comes in frame 'a', but odom_frame_id is 'odom'"),
        ({'off_tf': 0.5}, '/odom is 0.5 m or rad off odom to base'),
        ({'off_tf': 0.2}, ''),
        ({'rival': 'map to odom'}, 'also sends the transform map to odom: stop it'),
    ],
    ids=str,
)
def test_other_things_that_are_wrong_are_told(known, says):
    lines = rules(**known)
    assert len(lines) == bool(says) and says in ''.join(lines)


def test_what_lasts_is_logged_less_and_less(monkeypatch):
    told, now = [], 0.0
    monkeypatch.setattr(time, 'monotonic', lambda: now)
    log = NodeLogger(SimpleNamespace(warning=told.append))
    for now in np.arange(0.0, 600.0):
        log('warning', f'no data for {now:.0f} s on /image')
    assert 4 < len(told) < 9
