"""The images that a node listens to, of one camera or of several. Callbacks only hand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
import time
from typing import Any

from kbr_localization.datasets.images import (
    check_compressed_format,
    decode_image,
    decode_raw_image,
    encode_jpeg,
)
from kbr_localization.datasets.multi_camera import camera_names, LazyImages, Synchronizer
from kbr_localization.errors import DatasetError
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.hints import InputWatch
import numpy as np
from sensor_msgs.msg import CompressedImage, Image

IMAGE_TYPES = {'raw': ('', Image), 'compressed': ('/compressed', CompressedImage)}
COMPRESSED = IMAGE_TYPES['compressed'][0]
UNMATCHED_SECONDS = 3.0
"""Without any images that belong together, after which something must be wrong."""


@dataclass(frozen=True)
class MessageImage:
    """A lazy image in a message, raw or compressed."""

    message: Any

    def __call__(self) -> np.ndarray:
        """Decode the image; raises DatasetError."""
        message = self.message
        if isinstance(message, CompressedImage):
            check_compressed_format(message.format, self.name)
            return decode_image(bytes(message.data), self.name)
        return decode_raw_image(
            message.encoding,
            message.height,
            message.width,
            message.step,
            message.data,
            self.name,
            bool(message.is_bigendian),
        )

    @property
    def name(self) -> str:
        """Return what messages call the image."""
        return f'at {conversions.stamp_to_ns(self.message.header.stamp) * 1e-9:.3f} s'

    def as_file(self, quality: int) -> bytes:
        """Bytes of a JPEG or PNG file, checked to be whole; raises DatasetError."""
        image = self()
        if isinstance(self.message, CompressedImage):
            return bytes(self.message.data)
        return encode_jpeg(image, self.name, quality)


def sibling(topic: str) -> tuple[str, str]:
    """Topic with the images of another one by the other transport, and its type."""
    other = 'raw' if topic.endswith(COMPRESSED) else 'compressed'
    suffix, message_type = IMAGE_TYPES[other]
    return topic.removesuffix(COMPRESSED) + suffix, conversions.type_name(message_type)


def as_files(load: Callable[[], Any], quality: int) -> list[bytes]:
    """Bytes of the files of one moment, one for each camera; raises DatasetError without one."""
    sources = load.sources if isinstance(load, LazyImages) else (load,)
    files = [source.as_file(quality) for source in sources if isinstance(source, MessageImage)]
    if len(files) < len(sources):
        raise DatasetError('a camera has no image at that moment: expected one of each')
    return files


class Cameras:
    """
    Images of some topics, handed on when those that belong together are there.

    `topics`: several, or none for `image`. `subscribe(message type, topic, callback)` listens.
    `hand_on(stamp, load)` gets what decodes the image, or a `MultiImage` of several cameras.
    """

    def __init__(
        self,
        topics: Sequence[str],
        transport: str,
        tolerance: float,
        subscribe: Callable[[Any, str, Callable[[Any], None]], Any],
        hand_on: Callable[[int, Callable[[], Any]], None],
    ) -> None:
        ending, message_type = IMAGE_TYPES[transport]
        self.names = camera_names(topics) if len(topics) > 1 else ()
        self._tolerance, self._hand_on = tolerance, hand_on
        self.subscriptions = [
            subscribe(message_type, _with(ending, topic), partial(self._take, camera))
            for camera, topic in enumerate(topics or ['image'])
        ]
        name, now = conversions.type_name(message_type), time.monotonic()
        self.watches = [
            InputWatch(s.topic_name, name, now, type_remedy='set image_transport')
            for s in self.subscriptions
        ]
        self._synchronizer: Synchronizer[MessageImage] = Synchronizer(self.names, tolerance)
        self._matched = now
        self.active = False

    @property
    def active(self) -> bool:
        """Whether images are handed on; those that wait for other cameras at the end are not."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        self._active = active
        if not active:
            self._synchronizer.clear('waited for other cameras at the end')

    @property
    def dropped(self) -> Counter[str]:
        """Images that found none of the other cameras to go with, by reason."""
        return self._synchronizer.dropped

    @property
    def liveliest(self) -> InputWatch:
        """Return what is known of the topic that sent last."""
        return max(self.watches, key=lambda watch: watch.last or 0.0)

    def hints(self, now: float) -> list[str]:
        """Say which cameras are left out, and whether no images ever belong together."""
        if not self.names or not any(watch.count for watch in self.watches):
            return []
        silent = self._synchronizer.silent
        alive = [name for name in self.names if name not in silent]
        lively = [now - (watch.last or 0.0) < UNMATCHED_SECONDS for watch in self.watches]
        if silent and any(lively):
            return [f'no images of {", ".join(silent)}: going on with {", ".join(alive)} alone']
        if all(lively) and self.active and now - self._matched > UNMATCHED_SECONDS:
            return [
                f'no images of {", ".join(self.names)} within {self._tolerance:g} s of each '
                'other: synchronise the cameras, or raise sync_tolerance'
            ]
        return []

    def _take(self, camera: int, message: Any) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        now = time.monotonic()
        self.watches[camera].saw(stamp_ns, now)
        if not self.active:
            self._matched = now
        elif not self.names:
            self._hand_on(stamp_ns, MessageImage(message))
        else:
            for moment_ns, images in self._synchronizer.add(
                camera, stamp_ns, MessageImage(message)
            ):
                self._matched = now
                self._hand_on(moment_ns, LazyImages(images))


def _with(ending: str, topic: str) -> str:
    return topic if topic.endswith(ending) else topic + ending
