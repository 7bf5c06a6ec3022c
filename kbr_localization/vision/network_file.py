"""A network's ONNX file: read once, when a map is built, and kept in the map with its hash."""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
from typing import Any

import cv2
from kbr_localization.errors import VisionError
from kbr_localization.files import read_file
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.preparation import to_grey
import numpy as np
from numpy.typing import NDArray

LARGEST_FILE = 1 << 31
"""Bytes; a protocol buffer cannot be larger."""
NETWORK, HASH = 'network', 'network_sha256'
_IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_IMAGENET_DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def read_network(config: VisionConfig) -> NDArray[np.uint8]:
    """Read the bytes of `network_file`; raises VisionError when it cannot be read."""
    if not config.network_file:
        raise VisionError(
            f'descriptor {config.descriptor}: expected vision.network_file, an ONNX file, got none'
        )
    try:
        return np.frombuffer(read_file(config.network_file, LARGEST_FILE), dtype=np.uint8)
    except OSError as error:
        raise VisionError(
            f'network {config.network_file!r}: {error.strerror}; set vision.network_file '
            'to an ONNX file'
        ) from error


def network_state(network: NDArray[np.uint8]) -> dict[str, Any]:
    """Return what a map keeps of a network: its bytes, and their hash."""
    return {NETWORK: network, HASH: _hash(network)}


def network_of(state: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return the bytes out of a map; raises VisionError where they are not those of their hash."""
    network = np.ascontiguousarray(state[NETWORK], dtype=np.uint8)
    kept = state.get(HASH, b'')
    kept = kept.decode(errors='replace') if isinstance(kept, bytes) else str(kept)
    # maps made before have none
    if kept and kept != _hash(network):
        raise VisionError(
            f'network of the map: expected one of SHA-256 {kept[:12]}…, got '
            f'{_hash(network)[:12]}…; build the map again'
        )
    return network


def as_input(image: NDArray[np.uint8], kind: str, size: tuple[int, int]) -> NDArray[np.float32]:
    """
    Network input (1, channels, height, width) of a BGR image.

    `kind`: that of `VisionConfig.network_input`. `size`: height, width.
    """
    small = np.asarray(image, dtype=np.uint8)
    if image.shape[:2] != size:
        resized = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        small = np.asarray(resized, dtype=np.uint8)
    planes: NDArray[Any]
    if kind == 'grey':
        planes = to_grey(small)[:, :, np.newaxis] / np.float32(255)
    else:
        planes = small[:, :, ::-1] / np.float32(255)
    if kind == 'imagenet':
        planes = (planes - _IMAGENET_MEAN) / _IMAGENET_DEVIATION
    return np.ascontiguousarray(planes.transpose(2, 0, 1)[np.newaxis], dtype=np.float32)


def _hash(network: NDArray[np.uint8]) -> str:
    return hashlib.sha256(network.tobytes()).hexdigest()
