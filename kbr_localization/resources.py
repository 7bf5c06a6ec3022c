"""Find files of the source tree or installation; explain how to install optional modules."""

from importlib import metadata
import os
from pathlib import Path
import sys

PACKAGE = 'kbr_localization'


def describe_missing(module: str | None, what: str = 'this command') -> str:
    """Explain in one line how to install an optional module; empty for other modules."""
    name, in_source = module or '', 'in the source folder of this package'
    if name == 'rclpy' or name.endswith(('_msgs', '_srvs', '_interfaces')):
        remedy = f"source the setup file of ROS 2, or `pip install '.[ros]'` {in_source}"
    elif name in ('cv2', 'h5py', 'rich', 'skimage', 'typer', 'yaml'):
        remedy = f"`pip install '.[app]'` {in_source}"
    elif name in ('distributed', 'joblib', 'onnxruntime', 'rerun', 'rosbags'):
        remedy = f'`pip install {"rerun-sdk" if name == "rerun" else name}`'
    else:
        return ''
    return f'{what} needs the Python module {name}, which is not installed: {remedy}'


def shared_file(relative: str) -> Path | None:
    """Return the path of a file such as 'config/fastdds.xml', or None if it is not installed."""
    package = Path(__file__).resolve().parent
    prefixes = [*package.parents, Path(sys.prefix)]
    candidates = [package.parent / relative]
    candidates += [prefix / 'share' / PACKAGE / relative for prefix in prefixes]
    return next((path for path in candidates if path.is_file()), None)


def fast_dds_profile() -> dict[str, str]:
    """Return {variable: path} of our profile for raw images; empty if a profile is set already."""
    names = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')  # of Fast DDS 3, 2
    path = shared_file('config/fastdds.xml')
    if path is None or any(name in os.environ for name in names):
        return {}
    # Fast DDS 3 warns of the name of 2; the ROS wheels are named differently since 3
    is_2 = any(metadata.distributions(name='ros-fastrtps'))
    if distribution := os.environ.get('ROS_DISTRO'):
        is_2 = distribution in ('humble', 'iron', 'jazzy')
    return {names[is_2]: str(path)}
