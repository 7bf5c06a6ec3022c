"""The map that a node works on: what is added to it, and when that is written. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
import os
import threading
import time
from typing import Any

from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps.growing import MapGrowth
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.registry import MapInUse

SAVE_SECONDS = 10.0
"""Between two writings of a map that grows by itself: what a power cut may cost."""
CLAIM_SECONDS = 10.0
"""Between two attempts at a file that another process adds to."""


class MapKeeper:
    """
    Map in use and its growth.

    All but `save` and `facts` belongs to the worker's thread. `background` writes: the disk must
    not hold up the worker.
    """

    def __init__(
        self,
        in_use: MapInUse,
        config: Callable[[], NodeConfig],
        background: Executor,
        log: Callable[[str, str], None],
    ) -> None:
        self.in_use, self._config = in_use, config
        self._growth = MapGrowth(config, in_use.kernel_map)
        self._background, self._log = background, log
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._unsaved: MapInUse | None = None
        self._unsaved_images = 0
        self._saved = time.monotonic()
        self._write_failure = self._claim_failure = ''
        self._claim_at = 0.0
        self._check_place()

    @property
    def failure(self) -> str:
        """Say what keeps images from being written or added, or nothing."""
        return self._write_failure or self._claim_failure

    def use(self, in_use: MapInUse) -> None:
        """
        Go on with another map; what was added to the old one is written.

        Save before the same map is read again: what is added while it is read is not kept.
        """
        before, self.in_use = self.in_use, in_use
        if in_use.file.path == before.file.path:
            in_use.file.take_over(before.file)
            self._drop_unsaved()
        else:
            self._background.submit(self._leave, before)
        self._growth.use(in_use.kernel_map)
        self._check_place()

    def _leave(self, before: MapInUse) -> None:
        with suppress(MapError):  # told there
            self.save()
        before.file.release()

    def _drop_unsaved(self) -> None:
        with self._lock:
            dropped, self._unsaved, self._unsaved_images = self._unsaved_images, None, 0
        if dropped:
            text = f'{dropped} images that were not written yet are not in the map that was read'
            self._log('warning', text)

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        kernel_map = self._growth.look(answer) if self._may_grow() else None
        if kernel_map is not None:
            self._take(kernel_map)
        if self._unsaved is not None and time.monotonic() - self._saved > SAVE_SECONDS:
            self._saved = time.monotonic()
            self._background.submit(self.save)
        return kernel_map

    def add(self, answer: Answer | None) -> KernelMap:
        """Return the map with the last answer's image; raises KbrError when that is no good."""
        self.in_use.file.claim()
        age = 0.0 if answer is None else time.monotonic() - answer.image.received
        kernel_map = self._growth.add(answer, age)
        self._take(kernel_map)
        return kernel_map

    def save(self) -> str:
        """Write what was added, in any thread; say where. A failure is told, and tried again."""
        # in one, or of two threads the one with the older map might write last
        with self._writing:
            return self._save()

    def _save(self) -> str:
        with self._lock:
            unsaved, images = self._unsaved, self._unsaved_images
            self._unsaved, self._unsaved_images = None, 0
        if unsaved is None:
            return str(self.in_use.file.path)
        try:
            unsaved.file.write(unsaved.kernel_map)
        except MapError as error:
            self._put_back(unsaved, images, error)
            raise
        self._write_failure = ''
        return str(unsaved.file.path)

    def _put_back(self, unsaved: MapInUse, images: int, error: MapError) -> None:
        """Keep for the next attempt what could not be written, unless its map was left."""
        if unsaved.name != self.in_use.name:
            self._write_failure = ''
            self._log('error', f'{images} added images are lost with the map left: {error}')
            return
        self._write_failure = str(error)
        self._log('error', f'{images} added images are not written yet: {error}')
        with self._lock:
            self._unsaved = self._unsaved or unsaved
            self._unsaved_images += images

    def close(self) -> None:
        """Let other processes add to the file."""
        self.in_use.file.release()

    def facts(self) -> dict[str, Any]:
        """Name and size of the map, and what became of its growth, for diagnostics."""
        # at once: the worker may count something new meanwhile
        counts = dict(self._growth.counts)
        return {
            'map': self.in_use.name,
            'images': len(self.in_use.kernel_map),
            'images added in all': self._growth.added,
            'images added and not yet written': self._unsaved_images,
            **{f'images {reason}': count for reason, count in counts.items()},
        }

    def _check_place(self) -> None:
        """Tell at once, not after hours of driving, that what is added cannot be written."""
        folder = self.in_use.file.path.parent
        self._claim_at = 0.0
        if not (self._config().grow_map and self._may_grow()):
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            reason = '' if os.access(folder, os.W_OK) else 'no permission to write'
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            self._log(
                'error',
                f'images that are added to the map cannot be written to {folder}: {reason}; set '
                'grow_into to a folder that can be written, or grow_map to false',
            )

    def _may_grow(self) -> bool:
        """Whether no other process adds to the file, told at once and asked now and then."""
        if not self._config().grow_map:
            self._claim_failure = ''
            return True
        if time.monotonic() < self._claim_at:
            return not self._claim_failure
        self._claim_at = time.monotonic() + CLAIM_SECONDS
        before, self._claim_failure = self._claim_failure, ''
        try:
            self.in_use.file.claim()
        except MapError as error:
            self._claim_failure = f'no images are added to the map: {error}'
            if self._claim_failure != before:
                self._log('error', self._claim_failure)
            return False
        if before:
            self._growth.use(self.in_use.kernel_map)
        return True

    def _take(self, kernel_map: KernelMap) -> None:
        added = len(kernel_map) - len(self.in_use.kernel_map)
        self.in_use = self.in_use.with_map(kernel_map)
        with self._lock:
            self._unsaved = self.in_use
            self._unsaved_images += added
