"""What else a user would pick for a stage, on the same images and vectors."""

from __future__ import annotations

from collections.abc import Callable
import importlib
from typing import Any, cast

from benchmarks.scene import Scene
import cv2
from kbr_localization.vision.learned_features import LearnedFeatures
from kbr_localization.vision.library_descriptors import OpenCvSift
from kbr_localization.vision.patch_grid import PatchGrid
from kbr_localization.vision.preparation import to_grey
from kbr_localization.vision.pyramid_describer import PyramidDescriber
from kbr_localization.vision.spatial_pyramid import level_weights, pyramid
import numpy as np

Timed = dict[str, Callable[[], Any]]
NO_FAISS = 'faiss is not installed (`pip install faiss-cpu`): its rows are left out'


def describer_of(scene: Scene) -> PyramidDescriber:
    """Return the describer of the map, which is made with the usual configuration."""
    describer = scene.kernel_map.describer
    assert isinstance(describer, PyramidDescriber)
    return describer


def extraction(scene: Scene) -> Timed:
    """Dense descriptors of an image: ours, OpenCV's at the same keypoints and at the paper's."""
    describer, image = describer_of(scene), scene.images[0]
    local = describer._local
    assert not isinstance(local, LearnedFeatures)
    grey, whole = describer.preparation.grey(image), to_grey(image)
    same = OpenCvSift(local.grid)
    paper = OpenCvSift(PatchGrid(whole.shape, 16, 8))
    return {
        'dense SIFT, ours': lambda: local.describe(grey),
        'cv2.SIFT, the same keypoints': lambda: same.describe(grey),
        'cv2.SIFT, 16-pixel patches every 8 of 640x480': lambda: paper.describe(whole),
    }


def description(scene: Scene) -> Timed:
    """From an image to a histogram of words: ours, and OpenCV's bag of words."""
    describer, image = describer_of(scene), scene.images[0]
    grey = describer.preparation.grey(image)
    keypoints = OpenCvSift(describer._local.grid)._keypoints
    name, bag = bag_of_words(grey, keypoints, describer.config.words)
    return {
        'image to descriptor, ours': lambda: describer.describe(image),
        f'{name}, the same keypoints': lambda: bag(grey),
    }


def bag_of_words(grey: np.ndarray, keypoints: Any, words: int) -> tuple[str, Callable[..., Any]]:
    """Make OpenCV's bag of words; OpenCV 5 has dropped the class, but not what it is made of."""
    # the type stubs of some versions lack SIFT_create
    sift, matcher = cast(Any, cv2).SIFT_create(), cv2.BFMatcher(cv2.NORM_L2)
    patches = sift.compute(grey, keypoints)[1]
    chosen = np.random.default_rng(0).choice(len(patches), words, replace=False)
    vocabulary = np.ascontiguousarray(patches[chosen])
    if hasattr(cv2, 'BOWImgDescriptorExtractor'):
        bag = cv2.BOWImgDescriptorExtractor(sift, matcher)
        bag.setVocabulary(vocabulary)
        return 'cv2.BOWImgDescriptorExtractor', lambda image: bag.compute(image, keypoints)

    def steps(image: np.ndarray) -> np.ndarray:
        matches = matcher.match(sift.compute(image, keypoints)[1], vocabulary)
        return np.bincount([match.trainIdx for match in matches], minlength=words)

    return 'the steps of cv2.BOWImgDescriptorExtractor (SIFT, BFMatcher, counts)', steps


def search(scene: Scene, note: Callable[[str], None]) -> Timed:
    """Compare an image with all of the map: our kernel vector, faiss on the pyramid vectors."""
    kernel_map = scene.kernel_map
    query = kernel_map.describer.describe(scene.images[len(scene.images) // 2])
    found: Timed = {'kernel vector, ours': lambda: kernel_map.similarities(query)}
    try:
        faiss: Any = importlib.import_module('faiss')
    except ImportError:
        note(NO_FAISS)
        return found
    vectors, one = unit_pyramids(scene, kernel_map.descriptors), unit_pyramids(scene, query[None])
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    graph = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    graph.add(vectors)
    found['faiss flat, 10 nearest'] = lambda: flat.search(one, 10)
    found['faiss HNSW, 10 nearest'] = lambda: graph.search(one, 10)
    return found


def unit_pyramids(scene: Scene, descriptors: np.ndarray) -> np.ndarray:
    """Weighted pyramid vectors of unit length, of which faiss takes the inner product."""
    layout = describer_of(scene).layout
    levels, weights = pyramid(descriptors, layout), level_weights(layout.levels)
    vectors = np.concatenate(
        [np.sqrt(weight * level) for weight, level in zip(weights, levels, strict=True)], axis=1
    ).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
