from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.errors import DatasetError
from kbr_localization.simulation import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
    write_building,
)
import numpy as np
import pytest

SMALL = BuildingConfig(width=160, height=120, texture=48, size=14.0)
RUN = RunConfig('run', seconds=6.0, seed=7)


@pytest.fixture(scope='module')
def building():
    return SyntheticBuilding(SMALL)


def test_a_run_is_a_dataset_with_regular_frames(building):
    run = SyntheticRun(building, RUN)
    assert isinstance(run, Dataset)
    assert len(run) == 15
    stamps = np.array([frame.stamp_ns for frame in run])
    np.testing.assert_allclose(np.diff(stamps) * 1e-9, 0.4, atol=0.021)
    assert run.odometry.stamps_ns[0] < stamps[0] < stamps[-1] < run.odometry.stamps_ns[-1]
    np.testing.assert_allclose(np.diff(run.odometry.stamps_ns), 50_000_000)
    assert run[-1].stamp_ns == stamps[-1]
    assert {frame.label.split('-')[0] for frame in run} <= set(building.plan.kinds)
    with pytest.raises(IndexError):
        run[15]


def test_a_robot_that_is_too_fast_for_its_way_is_told_before_anything_is_rendered():
    place = SyntheticBuilding(BuildingConfig('office', 14.0, width=64, height=48, texture=16))
    with pytest.raises(DatasetError, match=r'^run: .* into a wall at x .* lower its speed, 3 m/s'):
        SyntheticRun(place, RunConfig(route='tour', speed=3.0))


def test_a_frame_is_always_rendered_alike(building):
    first, second = SyntheticRun(building, RUN), SyntheticRun(building, RUN)
    np.testing.assert_array_equal(first[3].load_image(), second[3].load_image())
    assert np.any(first[3].load_image() != first[4].load_image())


def test_a_tour_passes_every_place_in_both_directions(building):
    run = SyntheticRun(building, RunConfig(route='tour', frame_rate=1.0))
    reference = np.array([frame.reference for frame in run])
    for a, b in building.plan.nodes[building.plan.edges]:
        middle, along = (a + b) / 2, np.arctan2(*(b - a)[::-1])
        near = reference[np.hypot(*(reference[:, :2] - middle).T) < 1.0]
        turned = np.cos(near[:, 2] - along)
        assert turned.max() > 0.5 > -0.5 > turned.min()


def test_a_building_is_written_as_cold_runs(tmp_path):
    calls = []
    runs = [RunConfig('one', seconds=2.0, seed=1), RunConfig('two', seconds=2.0, seed=2)]
    paths = write_building(
        tmp_path / 'out', 3, runs, SMALL, lambda *progress: calls.append(progress)
    )
    assert [path.name for path in paths] == ['one', 'two']
    assert calls == [(f'render {name}', i, 5) for name in ('one', 'two') for i in range(1, 6)]
    building = SyntheticBuilding(BuildingConfig(**{**vars(SMALL), 'seed': 3}))
    for path, config in zip(paths, runs, strict=True):
        written, rendered = open_dataset(path), SyntheticRun(building, config)
        assert written.skipped == {}
        for frame, original in zip(written, rendered, strict=True):
            assert (frame.stamp_ns, frame.label) == (original.stamp_ns, original.label)
            np.testing.assert_allclose(frame.reference, original.reference, atol=1e-6)
            np.testing.assert_allclose(frame.odometry, original.odometry, atol=1e-5)
            difference = frame.load_image().astype(int) - original.load_image()
            assert np.abs(difference).mean() < 6


def test_writing_a_building_refuses_taken_folders_and_names(tmp_path):
    runs = [RunConfig(seconds=1.0)]
    with pytest.raises(DatasetError, match='expected different names, got run, run'):
        write_building(tmp_path / 'out', runs=runs * 2, building=SMALL)
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'file').write_text('')
    with pytest.raises(DatasetError, match='exists already'):
        write_building(tmp_path / 'out', runs=runs, building=SMALL)


def test_an_interrupted_building_leaves_nothing(tmp_path):
    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_building(
            tmp_path / 'out', runs=[RunConfig(seconds=2.0)], building=SMALL, progress=interrupt
        )
    assert list(tmp_path.iterdir()) == []
