"""Any network in an ONNX file as a describer, run by OpenCV's dnn module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import threading
from typing import Any

import cv2
from kbr_localization.configuration import to_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.progress import Progress
from kbr_localization.vision import vector_kernel
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.describer import SelectableDescriber
from kbr_localization.vision.loading import load, LoadableImage
from kbr_localization.vision.network_file import (
    as_input,
    network_of,
    network_state,
    read_network,
)
from kbr_localization.vision.network_trial import try_network
from kbr_localization.vision.onnx_checks import check_tensors
from kbr_localization.vision.onnx_input import input_shape
from kbr_localization.vision.preparation import Preparation
from kbr_localization.workers import Workers
import numpy as np
from numpy.typing import NDArray

_TRIED = 5  # images of a run on which a network is tried


class NetworkDescriber(SelectableDescriber):
    """
    Describer by the output of a network, flattened and scaled to unit length.

    `network`: the bytes of the ONNX file (uint8). They are kept in the map, so that a map cannot
    meet another network than it was built with. Raises VisionError for a file that OpenCV cannot
    run on images of `network_size` with the channels of `network_input`.
    """

    kind = 'onnx'
    dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(
        self, config: VisionConfig, preparation: Preparation, network: NDArray[np.uint8]
    ) -> None:
        self.config, self.preparation, self.network = config, preparation, network
        self._net = self._read()
        self._one_at_a_time = threading.Lock()  # the network keeps its input and its answer
        # the output's size is known only after a run
        self.size = len(self._run(np.zeros((*preparation.shape, 3), dtype=np.uint8)))

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        answer = self._run(self.preparation.colour(image))
        if not np.isfinite(answer).all():
            raise VisionError(
                f'network {self.config.network_file} returns numbers that are not finite: check '
                'network_input, or give another network'
            )
        return vector_kernel.unit(answer)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Cosine kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        return vector_kernel.cross_gram(left, right)

    def state(self) -> Mapping[str, Any]:
        """Return configuration, camera and network by name: what `from_state` needs."""
        return {
            **to_mapping(self.config),
            **self.preparation.state(),
            **network_state(self.network),
        }

    @classmethod
    def from_state(
        cls, config: VisionConfig, preparation: Preparation, state: Mapping[str, Any]
    ) -> NetworkDescriber:
        """Build again from `state()`; raises VisionError for a damaged network."""
        return cls(config, preparation, network_of(state))

    @classmethod
    def fit(
        cls,
        config: VisionConfig,
        preparation: Preparation,
        images: Sequence[LoadableImage],
        rng: np.random.Generator,
        workers: Workers,
        progress: Progress,
    ) -> NetworkDescriber:
        """Read the network's file and try it on some images; see `fit_describer`."""
        describer = cls(config, preparation, read_network(config))
        describer._refuse_blind(images)
        return describer

    def _refuse_blind(self, images: Sequence[LoadableImage]) -> None:
        """Raise VisionError for a network to which every image is nothing, or no number."""
        seen = 0
        for image in images[:: max(1, len(images) // _TRIED)]:
            try:
                loaded = load(image)
                self.preparation.colour(loaded)
            except (DatasetError, VisionError):
                continue  # whoever describes the image tells
            if self.describe(loaded).any():
                return
            seen += 1
        if seen:
            raise VisionError(
                f'network {self.config.network_file} returns zeros only for {seen} images: check '
                'network_input, or give another network'
            )

    def _read(self) -> Any:
        try:
            content = self.network.tobytes()
            self._check_input(input_shape(content))
            check_tensors(content)
            try_network(content, self._input)
            return cv2.dnn.readNetFromONNX(self.network)
        except (VisionError, cv2.error) as error:
            reason = error.err if isinstance(error, cv2.error) else error
            raise VisionError(
                f'network {self.config.network_file} cannot be used: {reason}; export it with '
                'fixed sizes and an opset that OpenCV knows'
            ) from error

    @property
    def _input(self) -> tuple[int, int, int, int]:
        side = self.config.network_size
        return 1, 1 if self.config.network_input == 'grey' else 3, side, side

    def _check_input(self, shape: tuple[int, ...]) -> None:
        expected = self._input
        fits = len(shape) == len(expected) and all(
            size in (0, wanted) for size, wanted in zip(shape, expected, strict=True)
        )
        if not fits:
            raise VisionError(
                f'its input is {shape}, but network_size and network_input say {expected}'
            )

    def _run(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        try:
            given = as_input(image, self.config.network_input, self._input[2:])
            with self._one_at_a_time:
                self._net.setInput(given)
                return np.array(self._net.forward(), dtype=np.float32).ravel()
        except cv2.error as error:
            raise VisionError(
                f'network {self.config.network_file}: OpenCV cannot run it ({error.err}); export '
                'it with an opset that OpenCV knows'
            ) from error
