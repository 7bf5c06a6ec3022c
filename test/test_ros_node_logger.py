"""The log of a node says things once in a while, and keeps no more than it needs for that."""

from kbr_localization.ros.common.node_logger import LONGEST, MOST_ONCE, NodeLogger


class Told:
    """Stands for a ROS logger; keeps what it is told."""

    def __init__(self):
        self.texts = []

    def info(self, text):
        self.texts.append(text)


def test_messages_that_differ_in_their_numbers_only_are_one_kind():
    told = Told()
    log = NodeLogger(told)
    log('info', 'image at 3.2 s not used')
    log('info', 'image at 4.8 s not used')
    log('info', 'image at 4.8 s not used', quiet=0.0)
    log('info', 'another one')
    assert len(told.texts) == 3


def test_two_cameras_are_two_kinds_and_all_numbers_of_one_are_one():
    told = Told()
    log = NodeLogger(told)
    for seconds, deviation, size in (('5', '1.5', '640x480'), ('6', '-2.5e-05', '320x240')):
        for camera in ('/cam10/image', '/cam11/image'):
            log('info', f'no data for {seconds} s on {camera} of {size}: got [{deviation}, 0.1]')
    assert [text.split()[6] for text in told.texts] == ['/cam10/image', '/cam11/image']


def test_what_is_told_once_is_told_once_and_does_not_grow_without_end():
    """Anybody may send odometry, with a new frame in every message."""
    told = Told()
    log = NodeLogger(told, quiet=0.0)
    names = [chr(ord('a') + number) * 3 for number in range(3 * MOST_ONCE)]
    for name in names * 2:
        log.once('info', f'odometry comes in frame {name!r}')
    assert len(told.texts) == MOST_ONCE == len(log._once)


def test_what_is_told_once_is_told_though_another_number_was_just_now():
    told = Told()
    log = NodeLogger(told)
    for camera in (1, 2):
        log.once('info', f'images of cam/{camera} are now 320x240, were 640x480')
    assert len(told.texts) == 2


def test_a_name_of_a_million_characters_is_cut():
    """The encoding of an image, and a frame, are what the sender says."""
    told = Told()
    log = NodeLogger(told, quiet=0.0)
    for number in range(3):
        name = str(number) + 'x' * 1_000_000
        log('info', f'encoding {name!r} is not supported')
        log.once('info', f'odometry comes in frame {name!r}')
    assert len(told.texts) == 6 and max(map(len, told.texts)) == LONGEST
    assert all('… (10000' in text for text in told.texts)
    assert sum(map(len, log._once)) <= 3 * LONGEST
