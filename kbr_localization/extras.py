"""Modules that only parts of the package need, and what installs them."""

from __future__ import annotations

APP = "`pip install '.[app]'` in the source folder of this package"
LEARNED = '`pip install onnxruntime`'
ROS = "source the setup file of ROS 2, or `pip install '.[ros]'` in the source folder"
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

REMEDIES = dict.fromkeys(ROS_MODULES, ROS) | {
    'cv2': APP,
    'distributed': '`pip install distributed`',
    'h5py': APP,
    'joblib': '`pip install joblib`',
    'matplotlib': '`pip install matplotlib`',
    'onnxruntime': LEARNED,
    'rerun': '`pip install rerun-sdk`',
    'rich': APP,
    'rosbags': '`pip install rosbags`',
    'skimage': APP,
    'typer': APP,
    'yaml': APP,
}
"""By the name of the module, what to do where it is missing."""


def describe_missing(module: str, what: str = 'this command') -> str:
    """Say in one line which module is missing and what installs it."""
    return f'{what} needs the Python module {module}, which is not installed: {REMEDIES[module]}'
