"""The map that a node works on: what is added to it, and when that is written. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
import os
import threading
import time
from typing import Any

from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps.growing import GrowthConfig, MapGrowth
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.registry import MapInUse

SAVE_SECONDS = 10.0
"""Between two writings of a map that grows by itself: what a power cut may cost."""


class MapKeeper:
    """
    Map in use and its growth.

    All but `save` and `facts` belongs to the worker's thread. `background` writes: the disk must
    not hold up the worker.
    """

    def __init__(
        self,
        in_use: MapInUse,
        config: Callable[[], GrowthConfig],
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
        self.failure = ''
        self._check_place()

    def use(self, in_use: MapInUse) -> None:
        """Go on with another map; what was added to the old one is written."""
        if self._unsaved is not None:
            self._background.submit(self.save)
        self.in_use = in_use
        self._growth.use(in_use.kernel_map)
        self._check_place()

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        kernel_map = self._growth.look(answer)
        if kernel_map is not None:
            self._take(kernel_map)
        if self._unsaved is not None and time.monotonic() - self._saved > SAVE_SECONDS:
            self._saved = time.monotonic()
            self._background.submit(self.save)
        return kernel_map

    def add(self, answer: Answer | None) -> KernelMap:
        """Return the map with the last answer's image; raises KbrError when that is no good."""
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
            return str(self.in_use.save_path)
        try:
            unsaved.kernel_map.save(unsaved.save_path)
        except MapError as error:
            self.failure = str(error)
            self._log('error', f'{images} added images are not written yet: {error}')
            with self._lock:
                if self._unsaved is None and unsaved.name == self.in_use.name:
                    self._unsaved = unsaved
                self._unsaved_images += images
            raise
        self.failure = ''
        return str(unsaved.save_path)

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
        folder = self.in_use.save_path.parent
        if not self._config().grow_map:
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

    def _take(self, kernel_map: KernelMap) -> None:
        added = len(kernel_map) - len(self.in_use.kernel_map)
        self.in_use = self.in_use.with_map(kernel_map)
        with self._lock:
            self._unsaved = self.in_use
            self._unsaved_images += added
