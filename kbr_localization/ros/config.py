"""Parameters of the nodes, with the names of nav2_amcl where it has them."""

from dataclasses import dataclass
import re
from typing import ClassVar

from kbr_localization.configuration import Config, parameter
from kbr_localization.datasets.multi_camera import camera_names, STAMP_TOLERANCE
from kbr_localization.datasets.tracks import MAX_SPEED
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.se2 import FloatArray
import numpy as np


@dataclass(frozen=True)
class StreamConfig(Config):
    """Parameters of all nodes."""

    image_transport: str = parameter(
        'raw', 'image, or image/compressed', choices=('raw', 'compressed')
    )
    global_frame_id: str = parameter('map', 'frame of the map')
    odom_frame_id: str = parameter('odom', 'frame of the odometry')
    base_frame_id: str = parameter(
        'base_footprint',
        'frame of the robot; another child frame of the odometry is assumed to coincide',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ('global_frame_id', 'odom_frame_id', 'base_frame_id'):
            # tf2 frames have no leading slash
            object.__setattr__(self, name, getattr(self, name).lstrip('/'))
        frames = (self.global_frame_id, self.odom_frame_id)
        if '' in frames or frames[0] == frames[1]:
            raise ConfigurationError(
                "parameters 'global_frame_id' and 'odom_frame_id': expected the names of two "
                f"frames, as 'map' and 'odom', got {frames[0]!r} and {frames[1]!r}"
            )


@dataclass(frozen=True)
class InputConfig(StreamConfig):
    """Parameters of the localization node and the recorder."""

    image_topics: tuple[str, ...] = parameter(
        (), 'topics of several cameras, as front/image, in the order of the map; empty: image'
    )
    sync_tolerance: float = parameter(
        STAMP_TOLERANCE, 'seconds between images of one set', 0.0, 1.0
    )
    odom_source: str = parameter(
        'auto',
        'odom_frame_id to base_frame_id on /tf, or the topic odom; auto: odom until /tf has it',
        choices=('auto', 'tf', 'topic'),
    )
    no_data_timeout: float = parameter(5.0, 'seconds without a message before a hint', 0.5)

    @property
    def camera_names(self) -> tuple[str, ...]:
        """Names of several cameras, () for one; raises DatasetError unless they differ."""
        return camera_names(self.image_topics) if len(self.image_topics) > 1 else ()


@dataclass(frozen=True)
class ChangeableConfig(Config):
    """Parameters of the localization node that may change while it runs, as may the filter's."""

    map_file: str = parameter(
        '', 'map made by `kbr map build`, or a name in map_files; then call ~/load_map'
    )
    tf_broadcast: bool = parameter(True, 'broadcast global_frame_id to odom_frame_id on /tf')
    transform_tolerance: float = parameter(1.0, 'seconds a transform stays valid', 0.0, 60.0)
    always_reset_initial_pose: bool = parameter(False, 'forget the last pose when activated again')
    save_pose_rate: float = parameter(0.5, 'poses saved per second; 0: none', 0.0, 100.0)
    saved_pose_max_age: float = parameter(60.0, 'seconds for which a saved pose is used', 0.0)
    particles: int = parameter(300, 'poses in particle_cloud', 1, 100_000)
    grow_map: bool = parameter(False, 'add images where the pose is sure and the view is new')
    grow_below: float = parameter(0.6, 'best_similarity below which an image is added', 0.0, 1.0)
    grow_max_sd: float = parameter(
        0.25, 'largest sd of the position of an added image, metres', 0.0
    )
    grow_spacing_d: float = parameter(
        0.5, 'metres between added images of one heading', 0.0, 100.0
    )
    grow_spacing_a: float = parameter(0.5, 'radians between added images of one place', 0.0, 7.0)
    grow_max_images: int = parameter(1000, 'images that may be added to a map', 0, 1_000_000)


@dataclass(frozen=True)
class NodeConfig(InputConfig, ChangeableConfig):
    """Parameters of the localization node; `KbrConfig` has the filter's."""

    map_files: tuple[str, ...] = parameter(
        (),
        'maps as name=path, such as one per floor: each has a service ~/load_map/<name>; with '
        'map_file empty the first is loaded at the start',
    )
    method: str = parameter('kbr', 'localization method, see `kbr methods`', choices=(*METHODS,))
    initialize_globally: bool = parameter(True, 'start without an initial or a saved pose')
    set_initial_pose: bool = parameter(False, 'start from initial_pose')
    pose_file: str = parameter(
        '', 'where the pose is saved; empty: saved_pose_filepath, or else a file in ~/.ros'
    )
    saved_pose_filepath: str = parameter('', "nav2_amcl's name for pose_file; .json is appended")
    initialize_at_saved_pose: bool = parameter(False, 'use a saved pose of this map of any age')
    random_seed: int = parameter(0, 'seed of the random draws; -1: a new one at each start', -1)
    autostart: bool = parameter(True, 'activate without a lifecycle manager')
    bond_heartbeat_period: float = parameter(
        0.1,
        'seconds between heartbeats for a lifecycle manager, where the package bond is installed '
        'and autostart is false; 0: none',
        0.0,
        10.0,
    )
    # a raw image of 1920x1080 takes 6 MB
    image_queue: int = parameter(16, 'images that may wait for their odometry', 1, 200)
    image_backlog: int = parameter(
        4, 'images that may wait for processing; with more, only the newest is used', 1, 200
    )
    odometry_buffer: float = parameter(20.0, 'seconds of odometry to keep', 1.0, 3600.0)
    max_speed: float = parameter(
        MAX_SPEED, 'm/s; odometry that moves faster counts as reset', 0.01
    )
    grow_into: str = parameter(
        '', 'folder for the maps with added images; empty: where the map is, as office_grown.h5'
    )
    grow_in_place: bool = parameter(False, 'add images to the map file itself, for good')

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grow_in_place and self.grow_into:
            raise ConfigurationError(
                "parameters 'grow_in_place' and 'grow_into' are both set: expected one of them"
            )
        _ = self.maps  # raises for bad entries

    @property
    def maps(self) -> dict[str, str]:
        """Path of each name in `map_files`; raises ConfigurationError."""
        paths: dict[str, str] = {}
        for entry in self.map_files:
            name, _, path = (part.strip() for part in entry.partition('='))
            # a name becomes part of the name of a service
            if not path or name in paths or not re.fullmatch('[A-Za-z](_?[A-Za-z0-9])*', name):
                raise ConfigurationError(
                    "parameter 'map_files': expected name=path with different names of letters, "
                    f'digits and single underscores, got {entry!r}'
                )
            paths[name] = path
        return paths


@dataclass(frozen=True)
class InitialPose(Config):
    """Parameters initial_pose.x and so on, used with set_initial_pose."""

    prefix: ClassVar[str] = 'initial_pose.'
    x: float = parameter(0.0, 'x in the map frame, metres')
    y: float = parameter(0.0, 'y in the map frame, metres')
    z: float = parameter(0.0, 'ignored, as the robot moves in a plane')
    yaw: float = parameter(0.0, 'heading in the map frame, radians')
    std_xy: float = parameter(
        0.5, 'sd of x and y, metres; also for a pose without covariance', 1e-3, 1e4
    )
    std_yaw: float = parameter(0.26, 'the same of yaw, radians', 1e-3, 100.0)

    @property
    def covariance(self) -> FloatArray:
        """Covariance (3, 3) of x, y, yaw."""
        return np.diag([self.std_xy**2, self.std_xy**2, self.std_yaw**2])


@dataclass(frozen=True)
class RecorderConfig(InputConfig):
    out: str = parameter('', 'run folder to write; an existing run is continued')
    spacing_distance: float = parameter(0.2, 'metres between recorded images', 0.0, 100.0)
    spacing_angle: float = parameter(0.2, 'radians between recorded images', 0.0, 7.0)
    max_position_sd: float = parameter(0.5, 'largest sd of x or y of a pose, metres', 0.0)
    label: str = parameter('unknown', "the place's name, written with every image")
    jpeg_quality: int = parameter(95, 'JPEG quality of raw images', 1, 100)
    image_queue: int = parameter(60, 'images that may wait for their odometry', 1, 200)
    pose_type: str = parameter(
        'pose_with_covariance',
        'type of the topic pose; tf: global_frame_id to odom_frame_id or the robot, on /tf; none: '
        'no pose is known, and `kbr map build --poses odometry` finds it',
        choices=('pose_with_covariance', 'pose', 'odometry', 'tf', 'none'),
    )


@dataclass(frozen=True)
class PlayerConfig(StreamConfig):
    """Parameters of the player; `kbr play` does not use `run` and `cameras`."""

    run: str = parameter('', 'COLD run folder or rosbag2 to play')
    cameras: tuple[str, ...] = parameter(
        (), 'cameras to play if there are several: folders of a COLD run, topics of a bag'
    )
    rate: float = parameter(1.0, 'speed relative to the recording', 0.01, 1000.0)
    loop: bool = parameter(False, 'start over at the end; with recorded stamps time jumps back')
    start: float = parameter(0.0, 'seconds to skip at the beginning', 0.0, 1e9)
    duration: float = parameter(0.0, 'seconds of the recording to play; 0 plays all', 0.0, 1e9)
    stamps: str = parameter(
        'recorded',
        'stamps of the run, with /clock, or the time of sending',
        choices=('recorded', 'now'),
    )
    wait_for_subscribers: int = parameter(1, 'subscribers of image and odom to wait for', 0)
    camera_frame_id: str = parameter('camera', 'frame of the images')
