"""The benchmark of the latency: its camera keeps the rate, its figures are those of the data."""

import importlib
from pathlib import Path

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'benchmarks').is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

pytestmark = pytest.mark.ros


def test_the_camera_sends_the_nearest_image_at_its_rate(tmp_path):
    camera = importlib.import_module('benchmarks.camera')
    run = open_dataset(write_tiny_cold_run(tmp_path / 'run', frames=8))
    fast = camera.Upsampled(run, 30.0, 2.0)
    stamps = np.array([frame.stamp_ns for frame in fast])
    assert len(stamps) in (60, 61) and np.all(np.abs(np.diff(stamps) - 1e9 / 30) < 2)
    assert np.allclose(np.diff(fast.odometry.stamps_ns), 2e7)
    nearest = [np.argmin(np.abs(run.stamps_ns[:6] - stamp)) for stamp in stamps]
    for frame, index in zip(fast, nearest, strict=True):
        image = frame.load_image()
        assert image.shape == (96, 128, 3)
        np.testing.assert_array_equal(image[..., 0], run[int(index)].load_image())


def test_the_figures_are_those_of_what_was_measured():
    latency = importlib.import_module('benchmarks.latency')
    measured = latency.Measured()
    measured.times = [index / 30 for index in range(3000) if index != 700]
    measured.latencies = [0.010 + 1e-3 * time / 60 for time in measured.times]
    measured.memory = [(second, 100.0 + 0.01 * second) for second in range(100)]
    measured.callbacks = [(0.5, 2.0), (0.6, 3.0)]
    summary = measured.summary(30.0)
    assert summary['slope ms/min'] == pytest.approx(1.0)
    assert summary['without pose'] == 1 and summary['callbacks max ms'] == 3.0
    assert 10.0 < summary['p50 ms'] < summary['p95 ms'] < summary['p99 ms'] < 12.0
    assert summary['RSS growth, 2nd half %'] == pytest.approx(100 * (100.99 / 100.5 - 1))
