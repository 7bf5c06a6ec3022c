"""Messages that are not installed everywhere: those of Nav2 and of bonds."""

from __future__ import annotations

import importlib
from typing import Any


def interface(module: str, name: str) -> Any:
    """Return a message or service type such as `nav2_msgs.msg`, `Particle`; None without it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
