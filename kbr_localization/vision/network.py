"""
Networks in ONNX files, run by onnxruntime, and the dense local features of such networks.

A map keeps its network's file and the SHA-256 of it. A network is trusted as a program is.
"""

from collections.abc import Mapping, Sequence
import hashlib
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
NETWORK_ENTRIES = NETWORK, HASH = 'network', 'network_sha256'
"""What a map keeps of a network: the bytes of its ONNX file and their SHA-256."""
STRIDE = 32
"""Image sides that a network leaves open are rounded up to multiples of this."""


def read_network(config: VisionConfig) -> dict[str, Any]:
    """Read `network_file` for a map to keep; raises VisionError when it cannot be read."""
    if not config.network_file:
        raise VisionError(
            f'descriptor {config.descriptor}: expected vision.network_file, an ONNX file, got none'
        )
    try:
        # a protocol buffer cannot be larger
        content = read_file(config.network_file, 1 << 31)
    except OSError as error:
        raise VisionError(
            f'network {config.network_file!r}: {error.strerror}; set vision.network_file '
            'to an ONNX file'
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    return {NETWORK: np.frombuffer(content, dtype=np.uint8), HASH: digest}


class Network:
    """
    A network that onnxruntime runs on the CPU; threads may share it.

    `kept`: see `read_network`. `size`: height and width of its input, where it takes any. `tried`:
    its answers to noise. Raises VisionError for a damaged file and one that onnxruntime cannot
    read or run, MissingModuleError without onnxruntime.
    """

    def __init__(self, config: VisionConfig, kept: Mapping[str, Any], size: Sequence[int]) -> None:
        content, expected = np.asarray(kept[NETWORK], dtype=np.uint8).tobytes(), kept[HASH]
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise VisionError(
                f'network of the map: expected one of SHA-256 {expected[:12]}…, got '
                f'{found[:12]}…; build the map again'
            )
        try:
            import onnxruntime  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            what = f'the descriptor {config.descriptor}'
            raise MissingModuleError(describe_missing('onnxruntime', what)) from error
        self._file = config.network_file
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = config.network_threads, 1
        options.log_severity_level = 4  # errors are raised as well
        # waiting threads must not take the processor from the filter
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        try:
            self._session = onnxruntime.InferenceSession(
                content, options, ['CPUExecutionProvider']
            )
        # its exceptions have no common class but Exception
        except Exception as error:
            raise self.unusable(f'onnxruntime cannot read it ({error})') from error
        self._input, *_ = self._session.get_inputs()
        if len(self._input.shape) != 4:
            raise self.unusable(
                f'its input is {self._input.shape}: expected (1, channels, height, width)'
            )
        _, channels, *sides = self._input.shape
        self._kind = 'grey' if channels == 1 else config.network_input
        # a side that it leaves open is a name or no number
        own = [side if isinstance(side, int) and side > 0 else 0 for side in sides]
        self._size = [fixed or free for fixed, free in zip(own, size, strict=True)]
        noise = np.random.default_rng(0).integers(0, 256, (*self._size, 3), dtype=np.uint8)
        self.tried = self.run(noise)

    def run(self, image: NDArray[np.uint8]) -> list[Float32Array]:
        """Return all outputs for a BGR image; raises VisionError where one is not finite."""
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
            answers = self._session.run(None, {self._input.name: planes})
        except Exception as error:
            raise self.unusable(f'onnxruntime cannot run it ({error})') from error
        if not all(np.isfinite(answer).all() for answer in answers):
            raise self.unusable('it returns numbers that are not finite: check network_input')
        return [np.asarray(answer, dtype=np.float32) for answer in answers]

    def unusable(self, reason: str) -> VisionError:
        """Return the error of a network that does not fit."""
        line = ' '.join(reason.split())[:250]
        return VisionError(f'network {self._file} cannot be used: {line}')


class LearnedFeatures:
    """
    Dense local features of a network, such as XFeat.

    The network answers an image with features (1, C, h, w), a vector for each place of a grid,
    and possibly with their reliability (1, 1, h, w). `size`: numbers of a feature. `grid`: its
    places. Raises VisionError for a network that answers anything else.
    """

    step = 2**-11

    def __init__(
        self, config: VisionConfig, preparation: Preparation, kept: Mapping[str, Any]
    ) -> None:
        size = [-(-side // STRIDE) * STRIDE for side in preparation.shape]
        self._network = Network(config, kept, size)
        features, _ = self._features(self._network.tried)
        self.size = features.shape[0]
        self.grid = PatchGrid((features.shape[1], features.shape[2]), 1, 1)

    def describe_colour(self, image: NDArray[np.uint8]) -> tuple[Float32Array, Float32Array]:
        """Features (k, size) of unit length of a BGR image, and weights (k,) of mean 1."""
        features, reliability = self._features(self._network.run(image))
        vectors = features.reshape(self.size, -1).T
        length = np.sqrt(np.einsum('ij,ij->i', vectors, vectors))
        unit = vectors / np.maximum(length, 1e-12)[:, np.newaxis]
        weights = np.maximum(reliability.ravel(), 0.0)
        mean = float(weights.mean())
        relative = weights / mean if mean > 1e-12 else np.ones_like(weights)
        return rounded(unit, self.step), np.asarray(relative, np.float32)

    def _features(self, answers: list[Float32Array]) -> tuple[Float32Array, Float32Array]:
        """Features (C, h, w) and reliability (h, w) of a network's answers."""
        maps = [one for one in answers if one.ndim == 4 and one.shape[0] == 1 and one.size]
        if not maps:
            shapes = ', '.join(str(one.shape) for one in answers)
            raise self._network.unusable(
                f'it answers {shapes}: expected features of shape (1, C, rows, columns)'
            )
        features, *others = maps
        alike = (1, 1, *features.shape[2:])
        ones = np.ones(alike, dtype=np.float32)
        reliability = next((one for one in others if one.shape == alike), ones)
        return features[0], reliability[0, 0]
