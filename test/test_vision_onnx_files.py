"""Networks from strangers: what is damaged, names other files or sees nothing is refused."""

from dataclasses import replace
import os
import struct
import subprocess
import sys
import time
import tracemalloc

from kbr_localization.errors import VisionError
from kbr_localization.vision import (
    describer_from_state,
    fit_describer,
    network_describer,
    onnx_checks,
    VisionConfig,
)
from kbr_localization.vision.network_trial import try_network
from kbr_localization.vision.onnx_checks import check_tensors
import numpy as np
import onnx_file
from onnx_file import convolution_network
from process_helpers import assert_nobody_is_left, leader
import pytest

SIDE = 32
CONFIG = VisionConfig(descriptor='onnx', network_size=SIDE, network_input='rgb')
WEIGHTS = np.random.default_rng(0).normal(size=(4, 3, 5, 5)).astype(np.float32)
IMAGES = list(np.random.default_rng(1).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8))
FLOATS = struct.pack(f'<{WEIGHTS.size}f', *WEIGHTS.ravel())


def tensor(*parts):
    return onnx_file.record(5, onnx_file.number(2, 1), onnx_file.record(8, 'weights'), *parts)


def sizes(*numbers):
    return b''.join(onnx_file.number(1, number) for number in numbers)


RAW = onnx_file.record(9, FLOATS)
RIGHT = sizes(4, 3, 5, 5)
NEGATIVE = (1 << 64) - 4


def network_of(monkeypatch, weights):
    """Network in which a tensor stands in the place of the weights."""
    monkeypatch.setattr(onnx_file, 'weights', lambda *_: weights)
    return convolution_network(WEIGHTS, SIDE)


def fitted(network, tmp_path, images=IMAGES):
    (tmp_path / 'net.onnx').write_bytes(network)
    config = replace(CONFIG, network_file=str(tmp_path / 'net.onnx'))
    return fit_describer(config, images, np.random.default_rng(0))


def test_a_size_of_minus_one_is_left_open(monkeypatch, tmp_path):
    """The runtimes take it so; it was refused as one of 18446744073709551615."""
    expected = fitted(convolution_network(WEIGHTS, SIDE), tmp_path).describe(IMAGES[0])
    write, minus_one = onnx_file.value, (1 << 64) - 1

    def left_open(field, name, shape):
        return write(field, name, (minus_one, shape[1], *[minus_one] * len(shape[2:])))

    monkeypatch.setattr(onnx_file, 'value', left_open)
    found = fitted(convolution_network(WEIGHTS, SIDE), tmp_path).describe(IMAGES[0])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    'parts, says',
    [
        ([sizes(4000, 3, 5, 5), RAW], 'declares 1200000 bytes and holds 1200'),
        ([sizes(4, 3, 5, 6), RAW], 'declares 1440 bytes and holds 1200'),
        ([sizes(NEGATIVE, 3, 5, 5), RAW], 'holds 1200'),
        ([RIGHT, onnx_file.record(4, FLOATS[:40])], 'declares 300 numbers and holds 10'),
        ([RIGHT, RAW, onnx_file.record(4, FLOATS[:40])], 'has its numbers twice'),
        ([RIGHT, RAW, onnx_file.number(2, 99)], 'unknown type 99'),
        ([RIGHT, RAW, onnx_file.number(2, 11)], 'declares 2400 bytes and holds 1200'),
        ([RIGHT, onnx_file.number(14, 1)], 'in another file'),
        ([RIGHT, RAW, onnx_file.record(13, onnx_file.record(1, 'location'))], 'in another file'),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_refused(monkeypatch, tmp_path, parts, says):
    network = network_of(monkeypatch, tensor(*parts))
    with pytest.raises(VisionError, match=f'net.onnx cannot be used: its .*{says}'):
        fitted(network, tmp_path)


@pytest.mark.parametrize(
    'parts',
    [
        [RIGHT, RAW],
        [onnx_file.record(1, bytes([4, 3, 5, 5])), RAW],
        [RIGHT, onnx_file.record(4, FLOATS)],
        [RIGHT, *(onnx_file.fixed32(4, value) for value in WEIGHTS.ravel())],
    ],
)
def test_all_forms_of_a_whole_tensor_are_read(monkeypatch, tmp_path, parts):
    expected = fitted(convolution_network(WEIGHTS, SIDE), tmp_path).describe(IMAGES[0])
    described = fitted(network_of(monkeypatch, tensor(*parts)), tmp_path).describe(IMAGES[0])
    np.testing.assert_allclose(described, expected, atol=1e-6)


def test_tensors_inside_of_nodes_and_subgraphs_are_looked_at():
    bad = onnx_file.record(5, sizes(9), onnx_file.number(2, 1), onnx_file.record(9, b'1234'))
    node = onnx_file.record(1, onnx_file.record(5, bad))
    for _ in range(5):
        check = onnx_file.record(7, node)
        with pytest.raises(VisionError, match='declares 36 bytes and holds 4'):
            check_tensors(check)
        node = onnx_file.record(1, onnx_file.record(5, onnx_file.record(6, node)))
    for _ in range(40):
        node = onnx_file.record(1, onnx_file.record(5, onnx_file.record(6, node)))
    with pytest.raises(VisionError, match='nested more than'):
        check_tensors(onnx_file.record(7, node))


def bounded_check(network, says):
    started = time.monotonic()
    with pytest.raises(VisionError, match=says):
        check_tensors(onnx_file.record(7, network))
    assert time.monotonic() - started < 60.0


def test_sizes_without_end_are_not_multiplied():
    many = (b'\xff' * 8 + b'\x7f') * 200_000
    bounded_check(onnx_file.record(5, onnx_file.record(1, many)), 'damaged|more than 64 axes')
    bounded_check(onnx_file.record(5, sizes(*[1 << 62] * 20_000)), 'more than 64 axes')


def test_millions_of_parts_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(onnx_checks, '_MOST_PARTS', 1000)
    bounded_check(b'\x0a\x00' * 2000, 'more than 1000 parts')
    bounded_check(onnx_file.record(5, onnx_file.number(5, 0) * 2000), 'more than 1000 parts')


def test_packed_integers_are_counted_and_not_made():
    packed = onnx_file.record(5, b'\x01' * 20_000_000)
    tracemalloc.start()
    bounded_check(onnx_file.record(5, sizes(7), onnx_file.number(2, 6), packed), 'holds 20000000')
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_parts_that_would_be_merged_are_refused():
    one = onnx_file.record(5, sizes(2), onnx_file.number(2, 1), onnx_file.record(9, FLOATS[:8]))
    other = onnx_file.record(5, onnx_file.number(2, 1), onnx_file.record(9, FLOATS[:4]))
    node = onnx_file.record(1, onnx_file.record(5, one, other))
    with pytest.raises(VisionError, match='damaged'):
        check_tensors(onnx_file.record(7, node))


def test_a_network_that_ends_the_process_ends_another_one(monkeypatch, tmp_path):
    network = network_of(monkeypatch, tensor(sizes(4_000_000, 3, 5, 5), RAW))
    with pytest.raises(VisionError, match=r'crashes on it \(SIG'):
        try_network(network, (1, 3, SIDE, SIDE))
    monkeypatch.setattr(network_describer, 'check_tensors', lambda _: None)
    with pytest.raises(VisionError, match=r'net.onnx cannot be used: OpenCV crashes'):
        fitted(network, tmp_path)


@pytest.mark.parametrize(
    'weight, says', [(np.nan, 'not finite'), (np.inf, 'not finite'), (-1.0, 'zeros only for 3')]
)
def test_a_network_that_sees_nothing_is_refused(tmp_path, weight, says):
    network = convolution_network(np.full_like(WEIGHTS, weight), SIDE)
    with pytest.raises(VisionError, match=says):
        fitted(network, tmp_path)


def test_a_network_in_a_map_is_checked_too(monkeypatch, tmp_path):
    state = dict(fitted(convolution_network(WEIGHTS, SIDE), tmp_path).state())
    bad = network_of(monkeypatch, tensor(sizes(4000, 3, 5, 5), RAW))
    state['network'] = np.frombuffer(bad, dtype=np.uint8)
    with pytest.raises(VisionError, match='network of the map: expected one of SHA-256'):
        describer_from_state(state)
    del state['network_sha256']  # a map made before has none
    with pytest.raises(VisionError, match='declares 1200000 bytes'):
        describer_from_state(state)


def test_a_pipe_in_the_place_of_a_network_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'net.onnx')
    for path in (tmp_path / 'net.onnx', '/dev/zero'):
        config = replace(CONFIG, network_file=str(path))
        with pytest.raises(VisionError, match='is a device or a pipe: expected a file'):
            fit_describer(config, IMAGES, np.random.default_rng(0))


SLOW_TRIAL = """
from kbr_localization.vision import network_trial

network_trial.SECONDS = 1.0
slow = network_trial.Runtime('slow', 'numpy', '    import time; time.sleep(600)')
print('begins', flush=True)
try:
    network_trial.try_network(b'', (1,), slow)
except network_trial.VisionError as error:
    print(error)
"""


@pytest.mark.parametrize('killed', [False, True])
def test_a_network_that_takes_too_long_is_ended_also_when_nobody_waits_for_it(killed):
    command = [sys.executable, '-c', SLOW_TRIAL]
    with leader(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == 'begins\n'
        time.sleep(0.3)
        if killed:
            run.kill()
        # what the trial writes goes elsewhere
        output = run.stdout.read()
        assert killed or output == 'it takes more than 1 s for one image\n'
        assert_nobody_is_left(run, time.monotonic() + 60.0)
