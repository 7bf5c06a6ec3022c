"""The kernel finds places: on rendered and on real photographs."""

from helpers import SHARED_DATA
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation.metrics import recall_at
from kbr_localization.simulation import BuildingConfig, LIGHTS, SyntheticBuilding
from kbr_localization.simulation.robot import follow
from kbr_localization.vision import fit_describer, VisionConfig
import numpy as np
import pytest

AHEAD = (0, 5, 10, 20, 40)
"""Frames of a drive at 20 Hz."""


def described(describer, runs, step):
    frames = [frame for run in runs for frame in list(open_dataset(run))[::step]]
    descriptors = np.stack([describer.describe(frame.load_image()) for frame in frames])
    return descriptors, np.array([frame.reference for frame in frames])


def recall(map_runs, query_runs, config, step):
    images = [frame.load_image() for run in map_runs for frame in list(open_dataset(run))[::20]]
    describer = fit_describer(config, images, np.random.default_rng(0))
    mapped, poses = described(describer, map_runs, step)
    queries, references = described(describer, query_runs, step)
    return recall_at(describer.cross_gram(queries, mapped), poses, references)


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='../shared/data is absent')
def test_rendered_corridors_are_found_again_on_another_run():
    runs = [SHARED_DATA / 'cold_like' / f'seq1_cloudy{i}' for i in (1, 2, 3)]
    config = VisionConfig(vocabulary_samples=10_000)
    found = recall(runs[:2], runs[2:], config, 5)
    assert found['recall_at_1'] > 0.9
    assert found['recall_at_10'] > 0.97


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='../shared/data is absent')
def test_photographs_of_a_kitchen_order_the_poses():
    """Similar images were taken nearby: rank correlation of kernel and distance."""
    kitchen = SHARED_DATA / 'seven_scenes_kitchen'
    describer = fit_describer(
        VisionConfig(vocabulary_samples=10_000),
        [frame.load_image() for frame in list(open_dataset(kitchen / 'map'))[::10]],
        np.random.default_rng(0),
    )
    mapped, poses = described(describer, [kitchen / 'map'], 5)
    queries, references = described(describer, [kitchen / 'test'], 10)
    kernel = describer.cross_gram(queries, mapped)
    distance = np.linalg.norm(references[:, np.newaxis, :2] - poses[:, :2], axis=2)
    nearest = distance[np.arange(len(queries)), kernel.argmax(axis=1)]
    assert nearest.mean() < 0.75 * distance.mean()


def test_kernel_falls_with_the_way_and_under_another_light_too():
    """What a filter needs: the farther the robot has driven, the less alike, however lit."""
    building = SyntheticBuilding(BuildingConfig(seed=4, width=320, height=240, texture=48))
    rng = np.random.default_rng(0)
    poses = follow(building.plan, building.plan.tour(rng), 0.8, 0.1, rng).poses
    starts = np.arange(100, 1300, 100)
    day, night = (
        np.array([[building.render(poses[i + j], light, rng) for j in AHEAD] for i in starts])
        for light in (LIGHTS['cloudy'], LIGHTS['night'])
    )
    config = VisionConfig(vocabulary_samples=10_000)
    describer = fit_describer(config, day.reshape(-1, 240, 320), rng)
    for views in (day, night):
        kernels = np.array(
            [
                describer.cross_gram(
                    describer.describe(there[0])[np.newaxis],
                    np.stack([describer.describe(view) for view in here]),
                )[0]
                for here, there in zip(day, views, strict=True)
            ]
        )
        means = kernels.mean(axis=0)
        assert np.all(np.diff(means) < 0)
        assert means[0] > means[-1] + 0.1
