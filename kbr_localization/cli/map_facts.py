"""What `kbr map info` says of a map."""

from __future__ import annotations

from typing import Any

from kbr_localization import se2
from kbr_localization.configuration import to_mapping
from kbr_localization.localization.calibration_words import described
from kbr_localization.localization.map.build import unique_names
from kbr_localization.localization.mapping.base_frame import described_point
from kbr_localization.vision.multi_camera import sections_of
from kbr_localization.vision.network import HASH

FRAMES = {False: 'that of the first image', True: 'aligned', None: 'unknown'}
"""Of a map of odometry, by whether it was aligned."""


_SIDES = ('image_height', 'image_width')


def describe_map(kernel_map: Any) -> dict[str, Any]:
    """Facts about a map, ready for JSON."""
    runs = {}
    # maps of earlier versions may have a name twice
    for index, name in enumerate(unique_names(kernel_map.run_names)):
        poses = kernel_map.poses[kernel_map.run_index == index]
        runs[name] = {'images': len(poses), 'metres': float(se2.travelled(poses).max(initial=0))}
    state = kernel_map.describer.state()
    cameras = sections_of(state) if kernel_map.cameras else {}
    shapes = {name: [int(of[side]) for side in _SIDES] for name, of in cameras.items()}
    networks = {name: of[HASH] for name, of in cameras.items() if HASH in of}
    network = networks or state.get(HASH)
    low, high = kernel_map.poses[:, :2].min(axis=0), kernel_map.poses[:, :2].max(axis=0)
    return {
        'images': len(kernel_map),
        'runs': runs,
        'x_m': [float(low[0]), float(high[0])],
        'y_m': [float(low[1]), float(high[1])],
        'cameras': list(kernel_map.cameras) or 1,
        'image_shape': shapes or list(kernel_map.image_shape),
        'descriptor': kernel_map.describer.kind,
        'descriptor_size': int(kernel_map.describer.size),
        **({} if network is None else {HASH: network}),
        'filter': to_mapping(kernel_map.filter_config),
        'baselines': {name: dict(values) for name, values in kernel_map.baselines.items()},
        'motion_noise': to_mapping(kernel_map.motion_noise),
        'odometry': described(kernel_map.calibration, kernel_map.mapping is not None),
        'poses': _poses_facts(kernel_map.mapping),
    }


def _poses_facts(record: Any) -> Any:
    """Say where the poses of a map come from."""
    if record is None:
        return 'known'
    return {
        'from': 'odometry',
        'of': described_point(record),
        'frame': FRAMES[record.aligned],
        'closures': int((record.kept == 1).sum()),
        'deviation_m': record.deviation_m,
    }


def flat(facts: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    """Return nested facts as rows of a table, named by their way."""
    rows: dict[str, Any] = {}
    for name, value in facts.items():
        inner = flat(value, f'{prefix}{name}.') if isinstance(value, dict) else {}
        rows |= inner or {prefix + name: value}
    return rows
