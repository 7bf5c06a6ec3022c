"""Where nodes keep what they remember."""

from __future__ import annotations

import os
from pathlib import Path


def own_folder() -> Path:
    """Return the package's folder in ROS_HOME or ~/.ros."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros') / 'kbr_localization'
