"""A node whose map may grow adds nothing in another building or with a camera that has died."""

from dataclasses import dataclass, replace
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import SHARED_DATA
from kbr_localization import se2
from kbr_localization.datasets import Frame, OdometryTrack, open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.grow import grown
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.simulation import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
)
from kbr_localization.vision import VisionConfig
import numpy as np
import pytest
from ros_node_helpers import by_stamp, diagnostics, start_node, start_player

pytestmark = pytest.mark.ros

VISION = VisionConfig(words=60, vocabulary_samples=4000, scale_up=False)
BELOW = 0.77
"""Views of a gap match worse than that in these small images, most others better."""
SECOND = 1_000_000_000
BEGINS, ENDS = 47, 227
"""Frames of the drive that are sent: half a minute and more before and after the gap."""
DIES = 90
"""Frame of these from which a camera is dead, in the middle of a gap of the map."""
GAP = 2.0
"""Metres about that place of which the map has no image."""


@dataclass(frozen=True)
class Drive:
    """A drive in memory, and the map that another drive of the building has left."""

    frames: list[Frame]
    odometry: OdometryTrack
    kernel_map: KernelMap


@dataclass(frozen=True)
class World:
    """A run and a map on disk."""

    run: Path
    map_file: Path


def building_of(seed):
    return SyntheticBuilding(
        BuildingConfig(width=160, height=120, texture=48, size=14.0, seed=seed)
    )


def map_of(building):
    return build_map([SyntheticRun(building, RunConfig('map', seconds=150.0, seed=1))], VISION)


@pytest.fixture(scope='module')
def here():
    """Give a drive, and a map with its statistics that lacks a part of its way."""
    building = building_of(3)
    driven = SyntheticRun(building, RunConfig('test', seconds=110.0, seed=2))
    frames = [replace(driven[n], image=driven[n].load_image()) for n in range(BEGINS, ENDS)]
    stamps = driven.odometry.stamps_ns
    sent = (stamps > frames[0].stamp_ns - SECOND) & (stamps < frames[-1].stamp_ns + SECOND)
    odometry = OdometryTrack(stamps[sent], driven.odometry.poses[sent])
    kernel_map = map_of(building)
    off = kernel_map.poses[:, :2] - frames[DIES].reference[:2]
    kept = np.flatnonzero(np.hypot(*off.T) > GAP)
    return Drive(frames, odometry, with_statistics(kernel_map.subset(kept)))


@pytest.fixture(scope='module')
def elsewhere():
    """Give the map of another building, with its statistics."""
    return with_statistics(map_of(building_of(4)))


@pytest.fixture
def grow(ros):
    """
    Play a run to a node whose map may grow.

    Returns the stamps of the images that were added, what growth counts, and the last status.
    """

    def run(world, **values):
        poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
        reports = ros.collect(DiagnosticArray, '/diagnostics')
        into = ros.folder / 'grown'
        values = {'grow_map': True, 'grow_below': BELOW, 'grow_into': into, **values}
        node, last_ns = start_node(ros, world, **values), open_dataset(world.run)[-1].stamp_ns
        player = start_player(ros, world, rate=10.0)
        ros.spin_until(lambda: player.popen.poll() is not None)
        ros.spin_until(lambda: last_ns in by_stamp(poses))
        reports.clear()
        ros.spin_until(lambda: diagnostics(reports, ': map')[1])
        facts, status = diagnostics(reports, ': map')[1], diagnostics(reports, ': localization')[0]
        assert node.stop() == 0 and 'Traceback' not in node.output
        files = list(into.iterdir())
        assert files in ([], [into / 'map.h5'])
        if not files:
            return [], facts, status
        kernel_map = KernelMap.load(files[0])
        added = grown(kernel_map)
        run.poses = kernel_map.poses[added]
        return kernel_map.stamps_ns[added].tolist(), facts, status

    return run


def written(folder, drive, frames=None, kernel_map=None):
    """Write the run of a drive, or with other frames, and its map, or another one."""
    write_cold_run(folder / 'run', frames or drive.frames, drive.odometry)
    (kernel_map or drive.kernel_map).save(folder / 'map.h5')
    return World(folder / 'run', folder / 'map.h5')


def test_in_a_gap_of_the_right_map_images_are_added(grow, here, tmp_path):
    """What the others are compared with: it would grow where it may."""
    stamps, facts, _ = grow(written(tmp_path, here))
    before = DIES - 5
    gap = [frame.stamp_ns for frame in here.frames[before:]]
    assert any(stamp >= gap[0] for stamp in stamps) and len(stamps) < 20
    assert facts['images added by itself'] == str(len(stamps))


def test_in_another_building_nothing_is_added(grow, here, elsewhere, tmp_path):
    stamps, facts, status = grow(written(tmp_path, here, kernel_map=elsewhere))
    assert not stamps and facts['images added in all'] == '0'
    assert not status.startswith('Localized')


@pytest.mark.parametrize(
    'factors', [(1.5, 1.5, 1.0), (1.0, -1.0, -1.0)], ids=['half as far again', 'mirrored']
)
def test_with_an_odometry_that_is_wrong_no_image_is_added_at_a_wrong_place(
    grow, here, tmp_path, factors
):
    poses = here.odometry.poses
    steps = se2.between(poses[:-1], poses[1:]) * np.array(factors)
    track = OdometryTrack(here.odometry.stamps_ns, se2.chain(poses[0], steps))
    stamps, _, _ = grow(written(tmp_path, replace(here, odometry=track)))
    truth = {frame.stamp_ns: frame.reference for frame in here.frames}
    for stamp_ns, pose in zip(stamps, grow.poses if stamps else [], strict=True):
        assert np.hypot(*(pose - truth[stamp_ns])[:2]) < 1.0


@pytest.mark.parametrize('what', ['black', 'noise', 'frozen', 'covered for a while'])
def test_a_camera_that_dies_in_a_gap_adds_nothing_from_then_on(grow, here, tmp_path, what):
    rng = np.random.default_rng(0)

    def seen(index, frame):
        if index < DIES or (what == 'covered for a while' and index >= DIES + 4):
            return frame.image
        if what == 'frozen':
            return here.frames[DIES - 1].image
        if what == 'noise':
            return rng.integers(0, 12, frame.image.shape, dtype=np.uint8)
        return np.zeros_like(frame.image)

    frames = [replace(f, image=seen(index, f)) for index, f in enumerate(here.frames)]
    stamps, _, status = grow(written(tmp_path, here, frames))
    dead = {frame.stamp_ns for frame in here.frames[DIES:]}
    if what == 'covered for a while':
        until = DIES + 4
        dead = {frame.stamp_ns for frame in here.frames[DIES:until]}
    else:
        assert not status.startswith('Localized')
    assert not dead & set(stamps)


@pytest.mark.slow
@pytest.mark.parametrize(
    'shown, driven',
    [
        ('seven_scenes_kitchen/map', 'cold_like/seq1_cloudy3'),
        ('cold_like/seq1_cloudy1', 'seven_scenes_kitchen/test'),
    ],
)
def test_photographs_of_a_kitchen_and_a_rendered_corridor_do_not_grow_each_other(
    grow, tmp_path, shown, driven
):
    if not (SHARED_DATA / shown).is_dir():
        pytest.skip(f'{SHARED_DATA} is not here')
    kernel_map = build_map([open_dataset(SHARED_DATA / shown)], VisionConfig())
    kernel_map.save(tmp_path / 'map.h5')
    world = World(SHARED_DATA / driven, tmp_path / 'map.h5')
    stamps, facts, status = grow(world, grow_below=0.55)
    assert not stamps and facts['images added in all'] == '0'
    assert not status.startswith('Localized')
