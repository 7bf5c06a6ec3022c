"""
Time from an image's stamp to its pose over DDS: python -m benchmarks.latency.

Node and camera are separate processes. The camera publishes raw 640x480 images of a rendered drive
at 20 Hz, stamped with the current time.
"""

import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.results import machine, parser_of, publish, table
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.datasets import open_dataset
from kbr_localization.demo.tour import own_domain
from kbr_localization.localization.map.build import build_map
from kbr_localization.resources import fast_dds_profile
from kbr_localization.ros import conversions
from kbr_localization.ros.running import ros_context
from kbr_localization.simulation.run import RunConfig, write_building
import numpy as np
import rclpy
from rclpy.node import Node

IMAGES, SECONDS, WARM_UP = 1000, 60.0, 5.0
"""Images of the map; seconds of the drive; seconds at its beginning that are not measured."""
RUNS = (
    RunConfig('first', route='tour', seed=1),
    RunConfig('second', route='tour', seed=2),
    RunConfig('drive', seconds=SECONDS, frame_rate=20.0, seed=3),
)


def start(module: str, *parameters: str) -> subprocess.Popen[bytes]:
    """Start a node of the package with parameters `name:=value`."""
    given = [word for one in parameters for word in ('-p', one)]
    return subprocess.Popen([sys.executable, '-m', module, '--ros-args', *given])


def watch(camera: subprocess.Popen[bytes]) -> np.ndarray:
    """Record poses until the camera ends: seconds since the first pose and latencies (m, 2)."""
    seen: list[tuple[float, float]] = []

    def take(message: PoseWithCovarianceStamped) -> None:
        now = time.time()
        seen.append((now, now - 1e-9 * conversions.stamp_to_ns(message.header.stamp)))

    with ros_context([]):
        node = Node('observer')
        node.create_subscription(PoseWithCovarianceStamped, 'amcl_pose', take, 50)
        while camera.poll() is None:
            rclpy.spin_once(node, timeout_sec=0.2)
        node.destroy_node()
    if not seen:
        raise SystemExit('latency: no pose was received')
    return np.array(seen) - [seen[0][0], 0.0]


def main() -> None:
    parser_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name, own_domain() as domain:
        folder = Path(name)
        *tours, drive = write_building(folder / 'building', runs=RUNS)
        build_map([open_dataset(run) for run in tours], max_images=IMAGES).save(folder / 'map.h5')
        os.environ |= {'ROS_DOMAIN_ID': str(domain), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
        os.environ.update(fast_dds_profile())
        node = start('kbr_localization.ros.node', f'map_file:={folder / "map.h5"}')
        seen = watch(start('kbr_localization.ros.player', f'run:={drive}', 'stamps:=now'))
        status = Path(f'/proc/{node.pid}/status').read_text(encoding='utf-8')
        node.send_signal(signal.SIGINT)
        node.wait(20)
    latencies = 1e3 * seen[seen[:, 0] > WARM_UP, 1]
    resident = float(status.partition('VmRSS:')[2].split()[0]) / 1e3
    percentiles = np.percentile(latencies, [50, 95, 99]).tolist()
    rows = [[f'{IMAGES} images', *percentiles, len(seen), resident]]
    publish(
        f'## Latency over DDS\n\n20 Hz, raw 640x480 images, {SECONDS:.0f} s. {machine()}\n\n'
        + table(['', 'p50 ms', 'p95 ms', 'p99 ms', 'poses', 'RSS MB'], rows),
        'latency',
    )


if __name__ == '__main__':
    main()
