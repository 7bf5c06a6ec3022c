"""What a user can tell the recorder about the run. No rclpy here."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.configuration import parameter, validate


@dataclass(frozen=True)
class RecordingConfig:
    """Which images are recorded, and where."""

    out: str = parameter('', 'run folder to write; an existing run is continued')
    spacing_distance: float = parameter(
        0.2, 'metres of way after which an image is recorded', 0.0, 100.0
    )
    spacing_angle: float = parameter(
        0.2, 'radians of turning after which an image is recorded', 0.0, 7.0
    )
    max_pose_age: float = parameter(
        2.0, 'seconds between an image and the nearest pose message at most', 0.01
    )
    max_position_sd: float = parameter(
        0.5, 'poses with a larger standard deviation of x or y are not used, metres', 0.0
    )
    odometry_rate: float = parameter(20.0, 'odometry poses recorded per second', 1.0, 1000.0)
    label: str = parameter('unknown', "the place's name, written beside every image")
    jpeg_quality: int = parameter(95, 'quality of images that come raw', 1, 100)
    image_queue: int = parameter(60, 'images that may wait for odometry and pose', 1, 200)

    def __post_init__(self) -> None:
        validate(self)
