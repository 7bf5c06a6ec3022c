"""Another kind of processor, simulated, learns the same words and counts them alike."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, cv2, numpy as np
from kbr_localization.vision import fit_describer, VisionConfig

rng = np.random.default_rng(0)
noise = rng.integers(0, 256, size=(12, 260, 333), dtype=np.uint8)
images = [cv2.equalizeHist(cv2.GaussianBlur(one, (0, 0), 2.5)) for one in noise]
for settings in {}, {'vocabulary_tree': False, 'patch_components': 0}, {'descriptor': 'daisy'}:
    config = VisionConfig(words=60, vocabulary_samples=3000, **settings)
    describer = fit_describer(config, images, np.random.default_rng(0))
    arrays = [describer.vocabulary.words, *map(describer.describe, images)]
    print(*(hashlib.sha256(one.tobytes()).hexdigest() for one in arrays))
"""
OLD_BLAS = {'OPENBLAS_CORETYPE': 'Prescott'}
NO_AVX = {
    'OPENBLAS_CORETYPE': 'Nehalem',
    'OPENCV_CPU_DISABLE': 'AVX2,FMA3,AVX,FP16',
    'OPENCV_IPP': 'disabled',
    'NPY_DISABLE_CPU_FEATURES': 'X86_V3 AVX2 FMA3',
}


def learnt(variables):
    command = [sys.executable, '-W', 'ignore', '-c', PROGRAM]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


@pytest.mark.parametrize('variables', [OLD_BLAS, NO_AVX], ids=['old blas', 'no avx'])
def test_words_and_histograms_are_equal_on_another_processor(variables):
    expected = learnt({'OMP_NUM_THREADS': '1'})
    assert len(expected.split()) == 3 * 13
    assert learnt(variables) == expected
