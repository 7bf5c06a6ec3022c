"""What is installed: the version, the code, and the configuration and launch files beside it."""

from __future__ import annotations

import hashlib
from importlib import metadata
import os
from pathlib import Path
import re
import sys

PACKAGE = 'kbr_localization'
PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
"""Variables that name a Fast DDS profile: that of Fast DDS 3, and that of 2."""
FAST_DDS_2 = ('foxy', 'galactic', 'humble', 'iron', 'jazzy')
"""Distributions which do not know the first."""


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


def code_state() -> str:
    """
    Version of the package and a hash of its code.

    Results of two sittings belong together where it is the same: a package that is used from its
    repository keeps its version from one commit to the next.
    """
    package, found = Path(__file__).resolve().parent, hashlib.sha256()
    for path in sorted(package.rglob('*.py')):
        found.update(path.relative_to(package).as_posix().encode())
        found.update(path.read_bytes())
    return f'{package_version()} {found.hexdigest()[:16]}'


def profile_variable() -> str:
    """Name the variable in which the Fast DDS that is installed looks for a profile."""
    distribution = os.environ.get('ROS_DISTRO')
    if distribution:
        return PROFILE_VARIABLES[distribution in FAST_DDS_2]
    # the wheels of ROS have another name since Fast DDS 3
    return PROFILE_VARIABLES[any(metadata.distributions(name='ros-fastrtps'))]
