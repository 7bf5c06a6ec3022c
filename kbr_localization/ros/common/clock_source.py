"""Which clock the stamps of a node come from: its name tells two runs of a simulation apart."""

from __future__ import annotations

from pathlib import Path
import secrets

from rclpy.node import Node

BOOT_ID = Path('/proc/sys/kernel/random/boot_id')
WALL = 'wall'


class ClockSource:
    """
    Name the clock of a node: the computer's, or whoever publishes /clock since this boot.

    A simulation that starts again has another publisher, while its stamps may look like those of
    the run before. One that has ended is remembered until another comes; before any is known the
    name is one that no other clock has.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last = f'unknown:{secrets.token_hex(8)}'

    def __call__(self) -> str:
        """Return the name of the clock now."""
        if not self._node.get_parameter('use_sim_time').value:
            return WALL
        publishers = self._node.get_publishers_info_by_topic('/clock')
        names = sorted(bytes(info.endpoint_gid).hex() for info in publishers)
        if names:
            self._last = ':'.join(['sim', _boot_id(), *names])
        return self._last


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ''
