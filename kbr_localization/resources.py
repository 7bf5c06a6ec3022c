"""What is installed: the version, files of the source tree, optional modules and remedies."""

from __future__ import annotations

import hashlib
from importlib import metadata
import os
from pathlib import Path
import re
import sys

PACKAGE = 'kbr_localization'
PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
"""Variables that name a profile: of Fast DDS 3, and of Fast DDS 2."""

_APP = "`pip install '.[app]'` in the source folder of this package"
_ROS = "source the setup file of ROS 2, or `pip install '.[ros]'` in the source folder"
ROS_MODULES = (
    'builtin_interfaces',
    'diagnostic_msgs',
    'geometry_msgs',
    'lifecycle_msgs',
    'nav_msgs',
    'rcl_interfaces',
    'rclpy',
    'sensor_msgs',
    'std_msgs',
    'std_srvs',
    'visualization_msgs',
)
REMEDIES = (
    dict.fromkeys(ROS_MODULES, _ROS)
    | dict.fromkeys(('cv2', 'h5py', 'rich', 'skimage', 'typer', 'yaml'), _APP)
    | {
        name: f'`pip install {name}`'
        for name in ('distributed', 'joblib', 'matplotlib', 'onnxruntime', 'rosbags')
    }
    | {'rerun': '`pip install rerun-sdk`'}
)
"""Names of optional modules, and how to install them."""


def describe_missing(module: str, what: str = 'this command') -> str:
    """Say in one line which module is missing and how to install it."""
    return f'{what} needs the Python module {module}, which is not installed: {REMEDIES[module]}'


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
    """Version from package.xml, which `catkin_prepare_release` keeps."""
    manifest = shared_file('package.xml')
    text = manifest.read_text(encoding='utf-8') if manifest else ''
    found = re.search(r'<version>([^<]+)</version>', text)
    return found.group(1) if found else metadata.version(PACKAGE)


def code_state() -> str:
    """
    Version of the package and a hash of its code.

    An interrupted job is resumed only where both are unchanged; from one commit to the next the
    version alone does not change.
    """
    package, found = Path(__file__).resolve().parent, hashlib.sha256()
    for path in sorted(package.rglob('*.py')):
        found.update(path.relative_to(package).as_posix().encode())
        found.update(path.read_bytes())
    return f'{package_version()} {found.hexdigest()[:16]}'


def profile_variable() -> str:
    """Name of the variable in which the installed Fast DDS looks for a profile."""
    distribution = os.environ.get('ROS_DISTRO')
    if distribution:
        fast_dds_2 = distribution in ('foxy', 'galactic', 'humble', 'iron', 'jazzy')
        return PROFILE_VARIABLES[fast_dds_2]
    # the ROS wheels are named differently since Fast DDS 3
    return PROFILE_VARIABLES[any(metadata.distributions(name='ros-fastrtps'))]
