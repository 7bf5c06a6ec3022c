"""Maps of runs with known poses, and faults of these runs that building names."""

from dataclasses import replace
import re

from command import done, FEW_WORDS
import cv2
from helpers import textured_image, tiny_frames, tiny_odometry, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack, open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import MapError
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.run_checks import frames_apart, odometry_fault, run_fault
from map_helpers import tiny_map, TINY_VISION, TinyRun
from mapping_helpers import RingRun
import numpy as np
import pytest

RUN = RingRun()
ODOMETRY, TRUE = RUN.odometry.poses, RUN.true


def test_controls_lead_from_each_image_to_the_next_of_its_run(shared_map):
    assert np.isnan(shared_map.controls[-1]).all()
    np.testing.assert_allclose(
        se2.compose(shared_map.poses[:-1], shared_map.controls[:-1])[:, :2],
        shared_map.next_poses[:-1, :2],
        atol=1e-6,
    )


def test_fewer_images_are_chosen_to_cover_the_run(shared_map):
    chosen = tiny_map(max_images=5).poses[:, 0]
    everything = shared_map.poses[:, 0]
    gaps = np.abs(everything[:, np.newaxis] - chosen).min(axis=1)
    assert gaps.max() <= (everything.max() - everything.min()) / 4


@pytest.mark.parametrize('place', [0, 5])
def test_images_that_are_broken_or_of_another_size_are_left_out_counted_and_named(
    tmp_path, caplog, place
):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    files = sorted((run / 'std_cam').iterdir())
    files[4].write_bytes(b'not a jpeg')
    cv2.imwrite(str(files[place]), textured_image(1, (60, 80)))
    dataset = open_dataset(run)
    assert len(build_map([dataset], vision=TINY_VISION)) == 10
    assert dataset.skipped == {'unusable image': 1, 'broken image': 1}
    last = files[max(place, 4)]
    assert last.name in caplog.text
    assert ('image of 80x60 pixels' in caplog.text) is (place == 5)


def test_no_map_is_made_where_as_many_images_do_not_fit_as_do(tmp_path):
    one, other = tmp_path / 'one', tmp_path / 'other'
    write_tiny_cold_run(one, frames=6)
    write_tiny_cold_run(other, frames=6, shape=(60, 80))
    with pytest.raises(MapError, match=r'only 6 of 12 images .* t16\d+.* image of 80x60 pixels'):
        build_map([open_dataset(one), open_dataset(other)], vision=TINY_VISION)


def test_frames_without_a_reference_pose_are_counted_and_some_need_one():
    run = TinyRun(12)
    run.frames = [
        replace(f, reference=f.reference if n % 3 == 0 else None) for n, f in enumerate(run)
    ]
    assert len(build_map([run], vision=TINY_VISION)) == 4
    assert run.skipped == {'no reference pose': 8}
    run.frames = [replace(frame, reference=None) for frame in run]
    with pytest.raises(MapError, match='no image with a reference pose in tiny'):
        build_map([run])
    for run.reference in (None, OdometryTrack(np.array([5]), np.zeros((1, 3)))):
        assert len(build_map([run, TinyRun(12)], vision=TINY_VISION)) == 12


@pytest.mark.parametrize(
    ('frames', 'told'),
    [(('map', 'world', 'map'), '(map: a, c; world: b)'), (('map', '', 'map'), '')],
)
def test_reference_poses_in_frames_of_several_names_are_told(caplog, frames, told):
    runs = [TinyRun(10, name) for name in 'abc']
    for run, frame in zip(runs, frames, strict=True):
        run.reference_frame = frame
    assert len(build_map(runs, vision=TINY_VISION)) == 30
    assert told in caplog.text if told else not caplog.text


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
    # straight on no side can be told
    straight = np.column_stack([np.arange(40.0), np.zeros((40, 2))])
    assert odometry_fault(straight * [1, -1, -1], straight) == ''
    assert found in run_fault('ring', RUN.odometry.stamps_ns, odometry, TRUE)


def test_building_tells_when_and_how_far_the_reference_leaps(caplog):
    run, up = TinyRun(30), np.array([0.0, 4.0, 0.0])
    run.frames[10:25] = [replace(f, reference=f.reference + up) for f in run.frames[10:25]]
    build_map([run], vision=TINY_VISION)
    assert 'by 4.0 m at 4.0 s (15 images), by 4.0 m at 10.0 s (5 images)' in caplog.text
    # of a pause the odometry tells nothing
    poses, odometry, stamps = (
        np.array([getattr(f, name) for f in run]) for name in ('reference', 'odometry', 'stamp_ns')
    )
    stamps[10:] += 10**11
    assert run_fault('tiny', stamps, odometry, poses).count('by ') == 1


@pytest.mark.parametrize(
    ('motion', 'metres', 'degrees'),
    [
        ((0.0, 0.0, 0.0), None, 0),
        ((0.2, 0.0, 0.0), None, 0),
        ((0.8, 0.0, 0.0), 0.8, 0),
        # to the side it may be that another lane was driven
        ((0.0, 0.5, 0.0), None, 0),
        ((0.8, 0.0, np.radians(8)), 0.8, 8),
        ((20.0, 5.0, 1.0), 20.16, 57.3),
    ],
)
def test_runs_whose_frames_disagree_are_named_with_the_offset(motion, metres, degrees):
    runs = [TinyRun(30, 'one'), TinyRun(30, 'two')]
    runs[1].frames = [replace(f, reference=se2.compose(motion, f.reference)) for f in runs[1]]
    found = ' '.join(frames_apart(build_map(runs, vision=TINY_VISION)))
    says = re.findall(r'images of two are (.*) m \(± 0.* of one, and turned by (.*) deg', found)
    if metres is None:
        assert found == ''
    else:
        np.testing.assert_array_less(np.abs(np.float64(says) - [metres, degrees]), [[0.1, 0.5]])


def test_the_command_warns_of_frames_that_disagree(tmp_path):
    runs = (tmp_path / 'one', tmp_path / 'two')
    for run, ahead in zip(runs, (0.0, 0.8), strict=True):
        moved = np.array([ahead, 0.0, 0.0])
        frames = [replace(f, reference=f.reference + moved) for f in tiny_frames(30)]
        write_cold_run(run, frames, tiny_odometry(30))
    told = done('map', 'build', *runs, '--out', tmp_path / 'm.h5', *FEW_WORDS).stderr
    assert 'warning: images of two are 0.80 m' in told
