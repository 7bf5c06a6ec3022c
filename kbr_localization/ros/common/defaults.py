"""Values that several parts of the nodes begin with."""

from __future__ import annotations

import os
from pathlib import Path

MAX_SPEED = 3.0
"""Metres per second that few robots in buildings exceed."""


def own_folder() -> Path:
    """Return the package's folder in ROS_HOME or ~/.ros."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros') / 'kbr_localization'
