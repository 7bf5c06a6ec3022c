"""Which clock the stamps of a node come from: its name tells two runs of a simulation apart."""

from __future__ import annotations

from pathlib import Path

from rclpy.node import Node

BOOT_ID = Path('/proc/sys/kernel/random/boot_id')
WALL = 'wall'


def clock_source(node: Node) -> str:
    """
    Name the clock of a node: the computer's, or whoever publishes /clock since this boot.

    A simulation that starts again has another publisher, while its stamps may look like those of
    the run before.
    """
    if not node.get_parameter('use_sim_time').value:
        return WALL
    publishers = node.get_publishers_info_by_topic('/clock')
    names = sorted(bytes(info.endpoint_gid).hex() for info in publishers)
    return ':'.join(['sim', _boot_id(), *names])


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ''
