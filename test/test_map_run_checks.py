"""Faults of the runs of a map that building it names."""

from dataclasses import replace
import re

from command import invoke
from helpers import tiny_frames, tiny_odometry
from kbr_localization import se2
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.run_checks import (
    frames_apart,
    odometry_fault,
    reference_leaps,
)
from map_helpers import TINY_VISION, TinyRun
from mapping_helpers import RingRun
import numpy as np
import pytest

RUN = RingRun()
ODOMETRY, TRUE = RUN.odometry.poses, RUN.true


def turned(degrees):
    """Odometry whose x and y are turned against its heading."""
    return np.column_stack(
        [ODOMETRY[:, :2] @ se2.rotation(np.radians(degrees))[:2, :2].T, ODOMETRY[:, 2]]
    )


@pytest.mark.parametrize(
    ('odometry', 'says'),
    [
        (ODOMETRY, ''),
        (ODOMETRY * 1.1, ''),
        (ODOMETRY * [1, -1, -1], 'turns to the other side: is z of its frame down (NED)?'),
        (np.pi / 2 * np.eye(3)[2] + ODOMETRY[:, [1, 0, 2]] * [1, 1, -1], 'turns to the other'),
        (turned(90), 'has its x axis turned by 90 degrees against its heading'),
        (turned(-45), 'has its x axis turned by -45 degrees against its heading'),
        (ODOMETRY * [1, 1, 0], 'is it never set, or in degrees?'),
        (ODOMETRY * [1, 1, np.degrees(1)], 'is it never set, or in degrees?'),
        (ODOMETRY * [1000, 1000, 1], 'does not move as the reference poses do'),
    ],
)
def test_an_odometry_of_a_wrong_convention_is_named(odometry, says):
    odometry = np.column_stack([odometry[:, :2], se2.wrap_angle(odometry[:, 2])])
    found = odometry_fault(odometry, TRUE)
    assert says in found and bool(says) == bool(found)


def test_a_straight_drive_does_not_tell_the_side_of_turns():
    straight = np.column_stack([np.arange(40.0), np.zeros((40, 2))])
    assert odometry_fault(straight * [1, -1, -1], straight) == ''


def test_leaps_of_reference_poses_are_those_against_the_odometry():
    leaping = TRUE.copy()
    leaping[60:140, 1] += 4.0
    stamps = RUN.odometry.stamps_ns
    assert [*reference_leaps(stamps, ODOMETRY, TRUE)] == []
    found = [*reference_leaps(stamps, ODOMETRY, leaping)]
    assert [image for image, _ in found] == [60, 140]
    np.testing.assert_allclose([metres for _, metres in found], 4.0, atol=0.1)
    # of a pause the odometry tells nothing
    paused = stamps + 10**11 * (np.arange(len(stamps)) >= 60)
    assert [image for image, _ in reference_leaps(paused, ODOMETRY, leaping)] == [140]


def test_building_tells_when_and_how_far_the_reference_leaps_and_of_which_kind_odometry_is(caplog):
    run = TinyRun(30)
    up = np.array([0.0, 4.0, 0.0])
    run.frames = [
        replace(frame, reference=frame.reference + up * (10 <= number < 25))
        for number, frame in enumerate(run.frames)
    ]
    build_map([run], vision=TINY_VISION)
    assert 'leap against its odometry' in caplog.text
    assert 'by 4.0 m at 4.0 s (15 images), by 4.0 m at 10.0 s (5 images)' in caplog.text
    caplog.clear()
    ring = TinyRun(len(TRUE), 'ring')
    ring.frames = [
        replace(frame, odometry=odometry, reference=pose)
        for frame, odometry, pose in zip(ring.frames, ODOMETRY * [1, -1, -1], TRUE, strict=True)
    ]
    build_map([ring], vision=TINY_VISION, max_images=20)
    assert 'the odometry of ring turns to the other side' in caplog.text


@pytest.mark.parametrize(
    ('motion', 'metres', 'degrees'),
    [
        ((0.0, 0.0, 0.0), None, 0),
        ((0.2, 0.0, 0.0), None, 0),
        ((0.8, 0.0, 0.0), 0.8, 0),
        # to the side it may be that another lane was driven
        ((0.0, 0.5, 0.0), None, 0),
        ((0.8, 0.0, np.radians(8)), 0.8, 8),
    ],
)
def test_runs_whose_frames_disagree_are_named_with_the_offset(motion, metres, degrees):
    runs = [TinyRun(30, 'one'), TinyRun(30, 'two')]
    runs[1].frames = [
        replace(frame, reference=se2.compose(np.array(motion), frame.reference))
        for frame in runs[1].frames
    ]
    found = [*frames_apart(build_map(runs, vision=TINY_VISION))]
    if metres is None:
        assert found == []
    else:
        says = re.match(
            r'images of two are (.*) m \(± 0.* of one, and turned by (.*) degrees', found[0]
        )
        assert float(says[1]) == pytest.approx(metres, abs=0.1)
        assert float(says[2]) == pytest.approx(degrees, abs=0.5)


def test_the_command_warns_of_frames_that_disagree(tmp_path):
    frames = tiny_frames(30)
    aside = np.array([0.8, 0.0, 0.0])
    moved = [replace(f, reference=f.reference + aside) for f in frames]
    for name, those in (('one', frames), ('two', moved)):
        write_cold_run(tmp_path / name, those, tiny_odometry(30))
    settings = ('--set', 'vision.words=20', '--set', 'vision.vocabulary_samples=2000')
    done = invoke(
        'map', 'build', tmp_path / 'one', tmp_path / 'two', '--out', tmp_path / 'm.h5', *settings
    )
    assert done.returncode == 0
    assert 'warning: images of two are 0.80 m' in done.stderr
