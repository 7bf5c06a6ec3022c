"""
Dense local features of a network in an ONNX file, run by onnxruntime.

The network answers an image with features (1, C, h, w), a vector for each place of a grid over
the image, and maybe with their reliability (1, 1, h, w), a number that is not negative. XFeat
(`xfeat`) is such a network.
"""

from __future__ import annotations

from typing import Any

from kbr_localization.errors import MissingModuleError, VisionError
from kbr_localization.resources import describe_missing
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.network_file import as_input
from kbr_localization.vision.network_trial import ONNXRUNTIME, try_network
from kbr_localization.vision.onnx_checks import check_tensors
from kbr_localization.vision.onnx_input import input_shape
from kbr_localization.vision.patch_grid import PatchGrid
from kbr_localization.vision.preparation import Preparation
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
STRIDE = 32
"""Sides that a network leaves open are rounded up to multiples of it, as most networks need."""
LARGEST_OUTPUT = 1 << 24
"""Numbers of an answer."""
_IMAGE_AXES = 4
_SMALLEST = 1e-12


class LearnedFeatures:
    """
    Local features of the images of one camera by a network.

    `network`: the bytes of the ONNX file (uint8). `size`: numbers of a feature. `grid`: of the
    features, a place each. Raises VisionError for a network that onnxruntime cannot run on such
    images or that answers anything else, and MissingModuleError without onnxruntime.
    """

    def __init__(
        self, config: VisionConfig, preparation: Preparation, network: NDArray[np.uint8]
    ) -> None:
        self._name = config.network_file
        content = network.tobytes()
        try:
            channels, self._shape = _input_of(content, preparation.shape)
            self._kind = 'grey' if channels == 1 else config.network_input
            shape = (1, 1 if self._kind == 'grey' else 3, *self._shape)
            if channels not in (0, shape[1]):
                raise VisionError(f'its input has {channels} channels: expected 1 or 3')
            check_tensors(content)
            try_network(content, shape, ONNXRUNTIME, LARGEST_OUTPUT)
            self._session = _session(content, config.network_threads)
            features, _ = self._run(np.zeros(shape, dtype=np.float32))
        except MissingModuleError:
            raise
        except VisionError as error:
            raise VisionError(f'network {self._name} cannot be used: {error}') from error
        self.size = features.shape[0]
        self.grid = PatchGrid((features.shape[1], features.shape[2]), 1, 1)

    def describe_colour(self, image: NDArray[np.uint8]) -> tuple[Float32Array, Float32Array]:
        """
        Describe a prepared BGR image by features (k, size) of unit length and weights (k,).

        The weights are the reliability over its mean, ones where the network has none. A feature
        of zeros stays one. Raises VisionError for numbers that are not finite.
        """
        features, reliability = self._run(as_input(image, self._kind, self._shape))
        if not (np.isfinite(features).all() and np.isfinite(reliability).all()):
            raise VisionError(
                f'network {self._name} returns numbers that are not finite: check network_input, '
                'or give another network'
            )
        vectors = features.reshape(self.size, -1).T
        length = np.sqrt(np.einsum('ij,ij->i', vectors, vectors))
        unit = vectors / np.maximum(length, _SMALLEST)[:, np.newaxis]
        return np.asarray(unit, dtype=np.float32), _relative(reliability.ravel())

    def _run(self, image: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Features (C, h, w) and reliability (h, w) of a network input."""
        try:
            answers = self._session.run(None, {self._session.get_inputs()[0].name: image})
        # its exceptions have no common class but Exception
        except Exception as error:
            raise VisionError(f'onnxruntime cannot run it ({_line(error)})') from error
        maps = [np.asarray(one, np.float32) for one in answers if _is_map(one)]
        if not maps:
            shapes = ', '.join(str(np.shape(one)) for one in answers)
            raise VisionError(
                f'it answers {shapes}: expected features of shape (1, C, rows, columns)'
            )
        features, *others = maps
        alike = (1, 1, *features.shape[2:])
        reliability = next((one for one in others if one.shape == alike), np.ones(alike))
        return features[0], np.asarray(reliability[0, 0], dtype=np.float32)


def _relative(reliability: Float32Array) -> Float32Array:
    """Divide (k,) by the mean, less than nothing being nothing; ones where nothing is left."""
    weights = np.maximum(reliability, 0.0)
    mean = float(weights.mean())
    return np.asarray(weights / mean if mean > _SMALLEST else np.ones_like(weights), np.float32)


def _input_of(network: bytes, shape: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Channels of the network's input, 0 if any, and the height and width to give it."""
    declared = input_shape(network)
    if len(declared) != _IMAGE_AXES or declared[0] not in (0, 1):
        raise VisionError(f'its input is {declared}: expected (1, channels, height, width)')
    height, width = (
        wanted or -(-side // STRIDE) * STRIDE
        for wanted, side in zip(declared[2:], shape, strict=True)
    )
    return declared[1], (height, width)


def _session(network: bytes, threads: int) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingModuleError(
            describe_missing('onnxruntime', 'the descriptor learned_pyramid')
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what goes wrong is raised as well
    # threads that wait must not take the processor from the filter
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    try:
        return onnxruntime.InferenceSession(network, options, ['CPUExecutionProvider'])
    # its exceptions have no common class but Exception
    except Exception as error:
        raise VisionError(f'onnxruntime cannot read it ({_line(error)})') from error


def _is_map(answer: Any) -> bool:
    shape = np.shape(answer)
    return len(shape) == _IMAGE_AXES and shape[0] == 1 and 0 not in shape


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())[:200] or type(error).__name__
