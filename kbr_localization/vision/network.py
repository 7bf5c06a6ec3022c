"""
Networks in ONNX files, run by onnxruntime, and dense local features of networks.

A map stores the file of its network. A network must be trusted like a program.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
from kbr_localization.errors import MissingModuleError, VisionError
from kbr_localization.files import read_file
from kbr_localization.resources import describe_missing
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.local_descriptors import PatchGrid, rounded
from kbr_localization.vision.preparation import Preparation, to_grey
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
NETWORK = 'network'
"""Entry of a network in a map: the bytes of its ONNX file."""
STRIDE = 32
"""Sides of the input image, if the network takes any, are rounded up to multiples of this."""


def read_network(config: VisionConfig) -> dict[str, Any]:
    """Return the map entry of `network_file`; raises VisionError if it cannot be read."""
    if not config.network_file:
        raise VisionError(
            f'descriptor {config.descriptor}: expected vision.network_file, an ONNX file, got none'
        )
    try:
        # protocol buffers are limited to 2 GiB
        content = read_file(config.network_file, 1 << 31)
    except OSError as error:
        raise VisionError(
            f'network {config.network_file!r}: {error.strerror}; set vision.network_file '
            'to an ONNX file'
        ) from error
    return {NETWORK: np.frombuffer(content, dtype=np.uint8)}


class Network:
    """
    A network that onnxruntime runs on the CPU. It is thread-safe.

    `stored`: see `read_network`. `size`: height and width of its input, if it takes any.
    `probe_outputs`: its outputs for a noise image. Raises VisionError for a damaged file or one
    that onnxruntime cannot read or run, MissingModuleError without onnxruntime.
    """

    def __init__(
        self, config: VisionConfig, stored: Mapping[str, Any], size: Sequence[int]
    ) -> None:
        content = np.asarray(stored[NETWORK], dtype=np.uint8).tobytes()
        try:
            import onnxruntime  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            what = f'the descriptor {config.descriptor}'
            raise MissingModuleError(describe_missing('onnxruntime', what)) from error
        self._file = config.network_file
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = config.network_threads, 1
        options.log_severity_level = 4  # errors are raised, so do not log them too
        # idle threads must not compete with the filter for the CPU
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        try:
            self._session = onnxruntime.InferenceSession(
                content, options, ['CPUExecutionProvider']
            )
        # the only common base class of onnxruntime's exceptions is Exception
        except Exception as error:
            raise self.error(f'onnxruntime cannot read it ({error})') from error
        self._input, *_ = self._session.get_inputs()
        if len(self._input.shape) != 4:
            raise self.error(
                f'its input is {self._input.shape}: expected (1, channels, height, width)'
            )
        _, channels, *sides = self._input.shape
        self._kind = 'grey' if channels == 1 else config.network_input
        # a side of any length is a name or None
        fixed = [side if isinstance(side, int) and side > 0 else 0 for side in sides]
        self._size = [own or given for own, given in zip(fixed, size, strict=True)]
        noise = np.random.default_rng(0).integers(0, 256, (*self._size, 3), dtype=np.uint8)
        self.probe_outputs = self.run(noise)

    def run(self, image: NDArray[np.uint8]) -> list[Float32Array]:
        """Return all outputs for a BGR image; raises VisionError if one is not finite."""
        if image.shape[:2] != tuple(self._size):
            resized = cv2.resize(image, self._size[::-1], interpolation=cv2.INTER_AREA)
            image = np.asarray(resized, dtype=np.uint8)
        grey = self._kind == 'grey'
        planes: Any = to_grey(image)[:, :, np.newaxis] if grey else image[:, :, ::-1]
        planes = planes / np.float32(255)
        if self._kind == 'imagenet':
            planes = planes - np.array([0.485, 0.456, 0.406], dtype=np.float32)
            planes = planes / np.array([0.229, 0.224, 0.225], dtype=np.float32)
        planes = np.ascontiguousarray(planes.transpose(2, 0, 1)[np.newaxis], dtype=np.float32)
        try:
            outputs = self._session.run(None, {self._input.name: planes})
        except Exception as error:
            raise self.error(f'onnxruntime cannot run it ({error})') from error
        if not all(np.isfinite(output).all() for output in outputs):
            raise self.error('it returns numbers that are not finite: check network_input')
        return [np.asarray(output, dtype=np.float32) for output in outputs]

    def error(self, reason: str) -> VisionError:
        line = ' '.join(reason.split())[:250]
        return VisionError(f'network {self._file} cannot be used: {line}')


class LearnedFeatures:
    """
    Dense local features of a network, such as XFeat.

    The network returns features (1, C, h, w) of an image, a vector for each grid point, and
    optionally their reliability (1, 1, h, w). `size`: C. `grid`: the grid points. Raises
    VisionError for a network with other outputs.
    """

    step = 2**-11

    def __init__(
        self, config: VisionConfig, preparation: Preparation, stored: Mapping[str, Any]
    ) -> None:
        size = [-(-side // STRIDE) * STRIDE for side in preparation.shape]
        self._network = Network(config, stored, size)
        features, _ = self._features(self._network.probe_outputs)
        self.size = features.shape[0]
        self.grid = PatchGrid((features.shape[1], features.shape[2]), 1, 1)

    def describe_colour(self, image: NDArray[np.uint8]) -> tuple[Float32Array, Float32Array]:
        """Return features (k, size) of unit length of a BGR image, and weights (k,) of mean 1."""
        features, reliability = self._features(self._network.run(image))
        vectors = features.reshape(self.size, -1).T
        length = np.sqrt(np.einsum('ij,ij->i', vectors, vectors))
        unit = vectors / np.maximum(length, 1e-12)[:, np.newaxis]
        weights = np.maximum(reliability.ravel(), 0.0)
        mean = float(weights.mean())
        relative = weights / mean if mean > 1e-12 else np.ones_like(weights)
        return rounded(unit, self.step), np.asarray(relative, np.float32)

    def _features(self, outputs: list[Float32Array]) -> tuple[Float32Array, Float32Array]:
        """Return the features (C, h, w) and their reliability (h, w)."""
        maps = [one for one in outputs if one.ndim == 4 and one.shape[0] == 1 and one.size]
        if not maps:
            shapes = ', '.join(str(one.shape) for one in outputs)
            raise self._network.error(
                f'its outputs are {shapes}: expected features of shape (1, C, rows, columns)'
            )
        features, *others = maps
        expected = (1, 1, *features.shape[2:])
        ones = np.ones(expected, dtype=np.float32)
        reliability = next((one for one in others if one.shape == expected), ones)
        return features[0], reliability[0, 0]
