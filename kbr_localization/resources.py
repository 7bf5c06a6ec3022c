"""Files that are installed beside the code: configuration and launch files."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
import re
import sys

PACKAGE = 'kbr_localization'


def shared_file(relative: str) -> Path | None:
    """
    Find a file such as 'config/fastdds.xml' of this package; None where it is not installed.

    It lies in the source tree (an editable installation), or under `share/kbr_localization` of
    the prefix that the code is installed to (colcon, pip).
    """
    package = Path(__file__).resolve().parent
    prefixes = [*package.parents, Path(sys.prefix)]
    candidates = [package.parent / relative]
    candidates += [prefix / 'share' / PACKAGE / relative for prefix in prefixes]
    return next((path for path in candidates if path.is_file()), None)


def package_version() -> str:
    """Version of the package as its manifest says, which `catkin_prepare_release` keeps."""
    manifest = shared_file('package.xml')
    if manifest is None:
        return metadata.version(PACKAGE)
    found = re.search(r'<version>([^<]+)</version>', manifest.read_text(encoding='utf-8'))
    return found.group(1) if found else metadata.version(PACKAGE)
