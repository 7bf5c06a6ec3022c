"""What the rules say is wrong with the inputs of a node; no messages involved."""

import time
from types import SimpleNamespace

from kbr_localization.ros.rules import diagnose, Facts, StampLead, Standstill, Topic, Unused
from kbr_localization.ros.running import NodeLogger
import numpy as np
import pytest

NOW = 1_600_000_000_000_000_000
SECOND = 1_000_000_000


def topic(name='/image', since=0.0, **known):
    made = Topic(name, 'sensor_msgs/msg/Image', since)
    for key, value in {'publishers': 1, **known}.items():
        setattr(made, key, value)
    return made


def told(watched, now=10.0, clock_ns=NOW):
    """Return what is said of one topic beside another that is fine."""
    fine = topic('/odom')
    fine.saw(clock_ns or NOW, now)
    for measured in (watched, fine):
        measured.measure(now, 5.0, clock_ns)
    return diagnose(Facts(watched, fine, Standstill(), StampLead()), [watched, fine])


@pytest.mark.parametrize(
    'known, says',
    [
        ({'publishers': 0}, 'publisher count 0: start the sender'),
        ({'publishers': 0, 'sibling': '/image/compressed'}, '/image/compressed has one: set'),
        ({'publishers': 2, 'incompatible': 2}, 'QoS incompatible with all 2 publishers'),
        ({'other_types': 'a/msg/B'}, 'published as a/msg/B, expected sensor_msgs/msg/Image'),
        ({'sought': 'map to odom'}, '1 publishers, none sends map to odom'),
        ({}, '1 publishers, none sends: check the sender'),
    ],
    ids=str,
)
def test_silence_has_a_reason(known, says):
    (line,) = told(topic(**known))
    assert line.startswith('no data for 10 s on /image: ') and says in line


def test_a_good_input_has_no_hint():
    watched = topic()
    for tick in range(100):
        watched.saw(NOW + tick, 0.1 * tick)
    assert not told(watched)


def test_stamps_that_are_zero_stand_still_or_are_of_another_clock_are_told():
    for stamps, says in (
        ([0, 0, 0], 'the stamps are zero'),
        ([NOW] * 7, 'the stamps do not advance'),
        ([NOW + 60 * SECOND], 'stamps are 60 s ahead of the clock of this node'),
        ([NOW - 60 * SECOND], 'stamps are 60 s behind the clock of this node'),
    ):
        watched = topic()
        for stamp_ns in stamps:
            watched.saw(stamp_ns, 9.9)
        (line,) = told(watched)
        assert says in line


@pytest.mark.parametrize(
    'arrived, lost, says', [(50, 50, True), (95, 5, False), (0, 2**31, False)]
)
def test_a_stream_that_is_half_lost_is_told_until_it_is_over(arrived, lost, says):
    watched = topic()
    for tick in range(30):
        watched.saw(NOW + tick, 10.0 + tick)
        if tick == 10:
            watched.count, watched.lost = watched.count + arrived, lost
        watched.measure(10.0 + tick, 5.0, 0)
        if tick in (12, 25):
            lines = told(watched, 10.0 + tick, 0)
            assert any('the others are lost on the way' in line for line in lines) == (
                says and tick == 12
            )


def test_a_second_sender_of_the_odometry_is_told_when_it_is_no_dead_one():
    watched = topic('/odom', exclusive=True, publishers=2)
    said = []
    for second in range(40):
        watched.saw(NOW + second, float(second))
        watched.publishers = 2 if second != 5 else 1
        said.append(any('only one may send' in line for line in told(watched, second, 0)))
    assert not any(said[:35]) and said[39]


def test_a_stream_of_which_nothing_is_used_is_told_until_something_is():
    unused = Unused()
    counts = [unused(0, 2 * second) for second in range(8)]
    assert counts[1] == 0 and counts[7] == 10
    assert unused(1, 16) == 0


def drive(standstill, seconds, start=0.0, speed=0.0, step=0.0):
    for tick in range(round(seconds * 10)):
        at = start + tick / 10
        standstill.add(NOW + round(at * SECOND), np.array([step * at, 0.0, 0.0]), speed)


def standing_facts(standstill, **known):
    image, odometry = topic(), topic('/odom')
    for watched in (image, odometry):
        watched.saw(NOW, 10.0)
        watched.measure(10.0, 5.0, 0)
    return diagnose(Facts(image, odometry, standstill, StampLead(), **known), [])


def test_an_odometry_that_stands_is_told_where_motion_is_waited_for():
    standstill = Standstill()
    drive(standstill, 12.0)
    assert not standing_facts(standstill)
    (line,) = standing_facts(standstill, not_localized=True)
    assert '/odom: the pose has stood still for 12 s' in line
    (line,) = standing_facts(standstill, records_motion=True)
    assert 'the next image is recorded when it moves' in line
    drive(standstill, 1.0, start=12.0, step=0.5)
    assert not standing_facts(standstill, not_localized=True, records_motion=True)


def test_a_twist_that_moves_while_the_pose_stands_is_told():
    standstill = Standstill()
    drive(standstill, 12.0, speed=0.4)
    (line,) = standing_facts(standstill, not_localized=True)
    assert 'its twist says 0.4 m/s' in line and 'fills the twist only' in line


@pytest.mark.parametrize(
    'xs, moves', [(np.arange(0.0, 2.0, 0.2), True), ([0.0, 3.0, 3.0], False), ([0.0] * 9, False)]
)
def test_known_poses_that_move_while_the_odometry_stands_are_told(xs, moves):
    standstill = Standstill()
    drive(standstill, 7.0)
    for x in xs:
        standstill.add_known(np.array([x, 0.0, 0.0]))
    lines = standing_facts(standstill, poses='/amcl_pose')
    assert [('while /amcl_pose went' in line) for line in lines] == [True] * moves


def lead(offset, image_rate=10, odometry_rate=50, delay=0.1, pace=1.0, seconds=9.0):
    """Return the lead of images whose clock is `offset` ahead, in a replay at `pace`."""
    made, newest = StampLead(), None
    events = [(t, 'odometry') for t in np.arange(0.0, seconds * pace, 1.0 / odometry_rate)]
    events += [(t, 'image') for t in np.arange(0.0, seconds * pace, 1.0 / image_rate)]
    arrivals = [(t / pace + (delay if kind == 'image' else 0.0), t, kind) for t, kind in events]
    for now, at, kind in sorted(arrivals):
        if kind == 'odometry':
            newest = NOW + round(at * SECOND)
        else:
            made.add(now, NOW + round((at + offset) * SECOND), newest)
    made.measure(seconds, 1.0 / odometry_rate)
    return made


@pytest.mark.parametrize('offset', [1.5, -1.5, 40.0])
@pytest.mark.parametrize('image_rate, odometry_rate', [(30, 50), (1, 50), (10, 5)])
def test_clocks_that_differ_are_told_in_seconds(offset, image_rate, odometry_rate):
    found = lead(offset, image_rate, odometry_rate)
    facts = Facts(topic(), topic('/odom'), Standstill(), found)
    (line,) = diagnose(facts, [])
    assert ('ahead of' if offset > 0 else 'behind') in line and 'set the clocks' in line
    assert abs(found.median - offset) < 0.35


@pytest.mark.parametrize(
    'how',
    [{}, {'delay': 0.6}, {'pace': 10.0}, {'odometry_rate': 1}, {'seconds': 2.0, 'offset': 9}],
)
def test_clocks_that_agree_are_not_complained_of(how):
    found = lead(**{'offset': 0.0, **how})
    assert not diagnose(Facts(topic(), topic('/odom'), Standstill(), found), [])


def test_other_things_that_are_wrong_are_told_with_the_remedy():
    image, odometry = topic(), topic('/odom')
    facts = Facts(image, odometry, Standstill(), StampLead(), node='/localization')
    facts.silent_cameras, facts.cameras = 'rear', 'front'
    facts.off_tf = 0.5
    facts.unused_odometry, facts.why_odometry = 5, 'expected a finite'
    facts.rival = facts.namesake = True
    text = '\n'.join(diagnose(facts, []))
    assert 'no images of rear: going on with front alone' in text
    assert '/odom is 0.5 m or rad off odom to base_footprint on TF' in text
    assert '/odom: none of the last 5 messages could be used: expected a finite' in text
    assert 'somebody else also sends the transform map to odom' in text
    assert 'another node is called /localization too' in text


def test_what_lasts_is_logged_less_and_less(monkeypatch):
    told, now = [], 0.0
    monkeypatch.setattr(time, 'monotonic', lambda: now)
    log = NodeLogger(SimpleNamespace(warning=told.append))
    for now in np.arange(0.0, 600.0):
        log('warning', f'no data for {now:.0f} s on /image')
    assert 4 < len(told) < 9
