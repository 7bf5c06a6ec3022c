"""What to send when, to replay a run: options and schedule. It knows nothing of rclpy."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.configuration import parameter
from kbr_localization.datasets import Dataset
from kbr_localization.errors import DatasetError

NANOSECONDS = 1_000_000_000
LONGEST_S = 1e9
"""Seconds, thirty years: what may be left out or played of a run."""


@dataclass(frozen=True)
class PlayerOptions:
    """How a run is played."""

    rate: float = parameter(1.0, 'speed relative to the recording', 0.01, 1000.0)
    loop: bool = parameter(
        False,
        'start over at the end; stamps and clock jump back, or with stamps: now go on, as if the '
        'robot were carried to the start',
    )
    start: float = parameter(0.0, 'seconds to leave out at the beginning', 0.0)
    duration: float = parameter(0.0, 'seconds of the recording to play; 0 plays all', 0.0)
    image_transport: str = parameter(
        'raw',
        'raw: Image on image; compressed: JPEG on image/compressed',
        choices=('raw', 'compressed'),
    )
    jpeg_quality: int = parameter(95, 'quality of compressed images', 1, 100)
    reliability: str = parameter(
        'reliable',
        'of the published topics; reliable serves best-effort subscribers too',
        choices=('reliable', 'best_effort'),
    )
    stamps: str = parameter(
        'recorded',
        'recorded: as in the run, with /clock; now: the time of sending, without /clock',
        choices=('recorded', 'now'),
    )
    clock_rate: float = parameter(100.0, 'messages on /clock per second of wall time', 1.0, 1000.0)
    reference: bool = parameter(True, 'publish the known poses on reference_pose')
    wait_for_subscribers: int = parameter(
        1, 'subscribers on image and odom to wait for before the start', 0
    )
    wait_timeout: float = parameter(0.0, 'seconds to wait for them at most; 0 waits on', 0.0)
    settle: float = parameter(0.5, 'seconds between the first clock message and the run', 0.0)
    linger: float = parameter(
        3.5, 'seconds to wait at the end until reliable subscribers have everything', 0.0
    )
    global_frame_id: str = parameter('map', 'frame of the reference poses')
    odom_frame_id: str = parameter('odom', 'frame of the odometry')
    base_frame_id: str = parameter('base_footprint', 'frame of the robot')
    camera_frame_id: str = parameter('camera', 'frame of the images')


@dataclass(frozen=True)
class Event:
    """One message to send: `kind` is 'odometry' or 'image', `index` its place in the run."""

    stamp_ns: int
    kind: str
    index: int


def _nanoseconds(seconds: float) -> int:
    if not 0.0 <= seconds <= LONGEST_S:
        raise DatasetError(f'expected seconds in [0, {LONGEST_S:g}], got {seconds:g}')
    return round(seconds * NANOSECONDS)


def schedule(dataset: Dataset, start: float = 0.0, duration: float = 0.0) -> list[Event]:
    """
    Odometry and images of a run in the order of their stamps, odometry first at equal stamps.

    `start` and `duration` in seconds cut a piece out of the run; a duration of 0 goes to its end.
    Raises DatasetError when no image is left, and for more than `LONGEST_S`.
    """
    stamps = dataset.odometry.stamps_ns
    odometry = [Event(int(stamp), 'odometry', index) for index, stamp in enumerate(stamps)]
    images = [Event(dataset[index].stamp_ns, 'image', index) for index in range(len(dataset))]
    events = sorted([*odometry, *images], key=lambda event: event.stamp_ns)
    first_ns = events[0].stamp_ns + _nanoseconds(start) if events else 0
    last_ns = first_ns + _nanoseconds(duration) if duration > 0 else None
    chosen = [
        event
        for event in events
        if first_ns <= event.stamp_ns and (last_ns is None or event.stamp_ns <= last_ns)
    ]
    if not any(event.kind == 'image' for event in chosen):
        piece = f'from {start:g} s ' + (f'for {duration:g} s' if duration > 0 else 'on')
        length = (events[-1].stamp_ns - events[0].stamp_ns) / NANOSECONDS if events else 0.0
        raise DatasetError(
            f'no image to play in {dataset.name!r} {piece}: the run has {length:.1f} s, choose '
            'another run, start or duration'
        )
    return chosen
