"""The kernel finds places: on rendered and on real photographs."""

from helpers import SHARED_DATA
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation.metrics import recall_at
from kbr_localization.simulation import BuildingConfig, SyntheticBuilding
from kbr_localization.simulation.light import LIGHTS
from kbr_localization.simulation.robot import follow
from kbr_localization.vision import fit_describer, VisionConfig
import numpy as np
import pytest

CONFIG = VisionConfig(vocabulary_samples=10_000)
SHARED = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='../shared/data is absent')


def compared(mapped, tests, step):
    """Kernel (q, n) of the images of runs and of a map's, and the poses of both."""
    there, here = (
        [frame for run in runs for frame in list(open_dataset(SHARED_DATA / run))[::step]]
        for runs in (mapped, tests)
    )
    images = [frame.image for frame in there[::4]]
    describer = fit_describer(CONFIG, images, np.random.default_rng(0))
    rows, columns = (
        np.stack([describer.describe(frame.load_image()) for frame in frames])
        for frames in (here, there)
    )
    poses = [np.array([frame.reference for frame in frames]) for frames in (there, here)]
    return describer.cross_gram(rows, columns), *poses


@SHARED
def test_rendered_corridors_are_found_again_on_another_run():
    runs = [f'cold_like/seq1_cloudy{i}' for i in (1, 2, 3)]
    found = recall_at(*compared(runs[:2], runs[2:], 5))
    assert found['recall_at_1'] > 0.9
    assert found['recall_at_10'] > 0.97


@SHARED
def test_similar_photographs_of_a_kitchen_were_taken_nearby():
    kitchen = [['seven_scenes_kitchen/map'], ['seven_scenes_kitchen/test']]
    kernel, poses, references = compared(*kitchen, 7)
    distance = np.linalg.norm(references[:, np.newaxis, :2] - poses[:, :2], axis=2)
    nearest = distance[np.arange(len(kernel)), kernel.argmax(axis=1)]
    assert nearest.mean() < 0.75 * distance.mean()


def test_kernel_falls_with_the_way_and_under_another_light_too():
    """What a filter needs: the farther the robot has driven, the less alike, however lit."""
    building = SyntheticBuilding(BuildingConfig(seed=4, width=320, height=240, texture=48))
    rng = np.random.default_rng(0)
    poses = follow(building.plan, building.plan.tour(rng), 0.8, 0.1, rng).poses
    frames = np.arange(100, 1300, 100)[:, np.newaxis] + (0, 5, 10, 20, 40)  # at 20 Hz
    lights = [LIGHTS[name] for name in ('cloudy', 'night')]
    day, night = (
        np.array([[building.render(pose, light, rng) for pose in row] for row in poses[frames]])
        for light in lights
    )
    describer = fit_describer(CONFIG, day.reshape(-1, 240, 320), rng)
    seen = np.array([[describer.describe(image) for image in row] for row in day])
    for starts in (day[:, 0], night[:, 0]):
        first = [describer.describe(image)[np.newaxis] for image in starts]
        pairs = zip(first, seen, strict=True)
        means = np.mean([describer.cross_gram(one, row)[0] for one, row in pairs], axis=0)
        assert np.all(np.diff(means) < 0)
        assert means[0] > means[-1] + 0.1
