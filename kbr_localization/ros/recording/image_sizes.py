"""Whether the images of a run keep their size, as those of a map have to. No rclpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbr_localization.datasets.images import shown_size, Size


class ImageSizes:
    """
    Follows the sizes of the images of each camera of a run.

    `topics`: of the cameras. `last`: the last images of a run that is gone on with, as files, or
    none. `tell` is called with what has changed. `changes`: the last change of each camera; it
    stays, as the images of the other size do.
    """

    def __init__(
        self, topics: Sequence[str], last: Sequence[bytes], tell: Callable[[str], None]
    ) -> None:
        self._topics, self._tell = tuple(topics), tell
        self._sizes: dict[str, Size] = {}
        self.changes: dict[str, str] = {}
        self.look(last)

    def look(self, files: Sequence[bytes]) -> None:
        """Take in the JPEG or PNG files of one moment, one for each camera."""
        for topic, data in zip(self._topics, files, strict=False):
            size = shown_size(data, topic)
            if size is None:
                continue
            before = self._sizes.setdefault(topic, size)
            if size != before:
                self._sizes[topic] = size
                self.changes[topic] = _changed(topic, size, before)
                self._tell(self.changes[topic])


def _changed(topic: str, now: Size, before: Size) -> str:
    return (
        f'images of {topic} are now {now[0]}x{now[1]}, were {before[0]}x{before[1]}: a map keeps '
        'one size per camera: set the camera back, and record into a new folder'
    )
