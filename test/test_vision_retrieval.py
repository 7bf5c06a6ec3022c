"""The kernel finds places: on rendered and on real photographs."""

from helpers import SHARED_DATA
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation.metrics import same_place
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
    kernel, poses, references = compared(runs[:2], runs[2:], 5)
    ranks = []
    for values, pose in zip(kernel, references, strict=True):
        right = same_place(poses, pose)
        if right.any():
            ranks.append(np.argmax(right[np.argsort(-values, kind='stable')]))
    assert np.mean(np.array(ranks) < 1) > 0.9
    assert np.mean(np.array(ranks) < 10) > 0.97


@SHARED
def test_similar_photographs_of_a_kitchen_were_taken_nearby():
    kitchen = [['seven_scenes_kitchen/map'], ['seven_scenes_kitchen/test']]
    kernel, poses, references = compared(*kitchen, 7)
    distance = np.linalg.norm(references[:, np.newaxis, :2] - poses[:, :2], axis=2)
    nearest = distance[np.arange(len(kernel)), kernel.argmax(axis=1)]
    assert nearest.mean() < 0.75 * distance.mean()
