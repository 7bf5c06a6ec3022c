"""Where a configured node may start from: the saved pose, the parameters, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import time

from kbr_localization import se2
from kbr_localization.errors import KbrError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.parameters.node_config import InitialPose, NodeConfig
from kbr_localization.ros.parameters.settings import Settings
from kbr_localization.ros.session import persistence
from kbr_localization.ros.session.answer import GivenPose, InitialPoseSources
from kbr_localization.ros.session.registry import MapInUse, MapRegistry
import numpy as np
from rclpy.node import Node

NEAR_METRES, FAR_METRES = 10.0, 100.0
"""From the nearest image of the map: a pose beyond the first is odd, beyond the second wrong."""


def pose_file(config: NodeConfig, node: Node) -> Path:
    """Return the file that a pose is saved in."""
    if config.pose_file:
        return expanded(config.pose_file)
    if config.saved_pose_filepath:
        # nav2_amcl writes its own format there
        return expanded(f'{config.saved_pose_filepath.removesuffix(".json")}.json')
    return persistence.default_pose_file(node.get_fully_qualified_name())


def saved_pose(path: Path, config: NodeConfig, log: NodeLogger) -> persistence.SavedPose | None:
    """Return the saved pose unless its file is old, whatever the stamps say."""
    try:
        saved = persistence.load_pose(path)
        if saved is None or config.initialize_at_saved_pose:
            return saved
        age = time.time() - path.stat().st_mtime
    except (RosError, OSError) as error:
        log('warning', str(error))
        return None
    if age <= config.saved_pose_max_age:
        return saved
    log('info', persistence.too_old(age, config.saved_pose_max_age))
    return None


def first_map(
    saved: persistence.SavedPose | None, registry: MapRegistry, map_file: str, log: NodeLogger
) -> MapInUse:
    """
    Read the map that a robot was on a moment ago, or the one of the parameters.

    Raises as `registry.read` does, for that of the parameters.
    """
    if saved is None or saved.map_name not in registry.paths or saved.map_name == map_file:
        return registry.read(map_file)
    log('info', f'going on with map {saved.map_name}, where the robot was last')
    try:
        return registry.read(saved.map_name)
    except KbrError as error:
        log('error', f'not going on there: {error}')
        return registry.read(map_file)


def check_is_near(in_use: MapInUse, pose: se2.FloatArray, log: NodeLogger) -> None:
    """Raise RosError when a pose (3,) is far off the map; warn when it is off at all."""
    distance = in_use.distance(pose)
    text = (
        f'x {pose[0]:.2f} m, y {pose[1]:.2f} m is {distance:.0f} m from the nearest image of the '
        'map'
    )
    if distance > FAR_METRES:
        raise RosError(f'{text}: give a pose on it, or load the map of that place')
    if distance > NEAR_METRES:
        log('warning', f'initial pose {text}: the robot may not be found there', 0.0)


def gather(
    settings: Settings,
    saved: persistence.SavedPose | None,
    in_use: MapInUse,
    clock: Callable[[], str],
    log: NodeLogger,
) -> InitialPoseSources:
    """Gather what a belief may start from on a map."""
    config = settings.config
    if saved is not None and saved.map_id != in_use.map_id:
        log('info', 'saved pose not used: it is of another map')
        saved = None
    if saved is not None and not _is_usable(saved.pose, 'saved pose', in_use, log):
        saved = None
    anyway = config.initialize_at_saved_pose
    # nav2_amcl prefers the saved one as well
    wanted = config.set_initial_pose and not (anyway and saved is not None)
    return InitialPoseSources(
        _initial_pose(settings.initial_pose, in_use, log) if wanted else None,
        saved,
        config.saved_pose_max_age,
        config.max_speed,
        config.initialize_globally,
        anyway,
        clock,
    )


def _initial_pose(pose: InitialPose, in_use: MapInUse, log: NodeLogger) -> GivenPose | None:
    given = GivenPose(np.array([pose.x, pose.y, pose.yaw]), pose.covariance)
    return given if _is_usable(given.pose, 'parameter initial_pose', in_use, log) else None


def _is_usable(pose: se2.FloatArray, name: str, in_use: MapInUse, log: NodeLogger) -> bool:
    """Whether a pose (3,) is not far off the map; else it is told, by name."""
    try:
        check_is_near(in_use, pose, log)
    except RosError as error:
        log('warning', f'{name} not used: {error}')
        return False
    return True
