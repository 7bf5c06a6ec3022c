"""Small trees in the formats of public datasets, all of the same drive, for the tests."""

import cv2
from helpers import textured_image
import numpy as np
from scipy.spatial.transform import Rotation

FRAMES = 6
RATE = 5
"""Frames a second of the drive."""
START_S = 1_403_636_579


def planar_poses(count=FRAMES):
    """Poses (n, 3) on an arc, not level with any axis: what every loader should find."""
    heading = 0.3 + 0.1 * np.arange(count)
    return np.column_stack([1.0 + 0.2 * np.arange(count), -0.5 + 0.1 * np.arange(count), heading])


def base_rotations(poses, pitch=0.1):
    """Rotations of a base (x ahead, z up) in a world with z up, pitched a little."""
    return [Rotation.from_euler('ZYX', [h, pitch, 0.02]) for h in poses[:, 2]]


CAMERA_IN_BASE = Rotation.from_matrix([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])
"""A camera (z ahead, x to the right, y down) that looks along the base's x."""


def positions(poses, height=1.5):
    return np.column_stack([poses[:, :2], np.full(len(poses), height)])


def write_image(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), textured_image(seed, (24, 32)))


def tum_lines(stamps, places, rotations):
    return ''.join(
        f'{stamp} {" ".join(f"{v:.9f}" for v in [*place, *rotation.as_quat()])}\n'
        for stamp, place, rotation in zip(stamps, places, rotations, strict=True)
    )


def seconds(count=FRAMES):
    stamps = [START_S * 10**9 + index * 10**9 // RATE for index in range(count)]
    return [f'{stamp // 10**9}.{stamp % 10**9:09d}' for stamp in stamps]


def write_tum_rgbd(path):
    poses, stamps = planar_poses(), seconds()
    rotations = [rotation * CAMERA_IN_BASE for rotation in base_rotations(poses)]
    for index, stamp in enumerate(stamps):
        write_image(path / 'rgb' / f'{stamp}.png', index)
    listed = ''.join(f'{stamp} rgb/{stamp}.png\n' for stamp in stamps)
    (path / 'rgb.txt').write_text('# color images\n' + listed)
    truth = tum_lines(stamps, positions(poses), rotations)
    (path / 'groundtruth.txt').write_text('# timestamp tx ty tz qx qy qz qw\n' + truth)
    return path


def write_euroc(path, cameras=('cam0',)):
    """Write the body at a pose of its own, so that T_BS matters."""
    root, poses = path / 'mav0', planar_poses()
    stamps = [stamp.replace('.', '') for stamp in seconds()]
    on_body = np.eye(4)
    on_body[:3, :3] = Rotation.from_euler('xyz', [0.3, -1.2, 0.8]).as_matrix()
    on_body[:3, 3] = [0.1, -0.2, 0.05]
    rows = ['#timestamp,p_x,p_y,p_z,q_w,q_x,q_y,q_z']
    for stamp, place, base in zip(stamps, positions(poses), base_rotations(poses), strict=True):
        camera = np.eye(4)
        camera[:3, :3], camera[:3, 3] = (base * CAMERA_IN_BASE).as_matrix(), place
        body = camera @ np.linalg.inv(on_body)
        x, y, z, w = Rotation.from_matrix(body[:3, :3]).as_quat()
        rows.append(','.join([stamp, *(f'{v:.9f}' for v in (*body[:3, 3], w, x, y, z))]))
    truth = root / 'state_groundtruth_estimate0' / 'data.csv'
    truth.parent.mkdir(parents=True)
    truth.write_text('\n'.join(rows) + '\n')
    for name in cameras:
        for index, stamp in enumerate(stamps):
            write_image(root / name / 'data' / f'{stamp}.png', index)
        listed = ''.join(f'{stamp},{stamp}.png\n' for stamp in stamps)
        (root / name / 'data.csv').write_text('#timestamp [ns],filename\n' + listed)
        data = ', '.join(f'{v:.12f}' for v in on_body.ravel())
        text = f'%YAML:1.0\nT_BS:\n  cols: 4\n  rows: 4\n  data: [{data}]\n'
        (root / name / 'sensor.yaml').write_text(text)
    return path


def y_down(poses):
    """Camera poses, as rotations and positions, in a world with the axes of a level camera."""
    world = CAMERA_IN_BASE.inv()
    rotations = [world * rotation * CAMERA_IN_BASE for rotation in base_rotations(poses)]
    return rotations, world.apply(positions(poses))


def write_kitti(path):
    """Write `path/sequences/07` with `path/poses/07.txt`; returns the sequence."""
    sequence, (rotations, places) = path / 'sequences' / '07', y_down(planar_poses())
    for index in range(FRAMES):
        write_image(sequence / 'image_0' / f'{index:06d}.png', index)
    (sequence / 'times.txt').write_text(''.join(f'{i / RATE:.6e}\n' for i in range(FRAMES)))
    rows = [
        ' '.join(f'{v:.9e}' for v in np.column_stack([rotation.as_matrix(), place]).ravel())
        for rotation, place in zip(rotations, places, strict=True)
    ]
    (path / 'poses').mkdir()
    (path / 'poses' / '07.txt').write_text('\n'.join(rows) + '\n')
    return sequence


def write_seven_scenes(path):
    """Write `path/seq-01`; returns it."""
    sequence, (rotations, places) = path / 'seq-01', y_down(planar_poses())
    for index, (rotation, place) in enumerate(zip(rotations, places, strict=True)):
        write_image(sequence / f'frame-{index:06d}.color.png', index)
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = rotation.as_matrix(), place
        np.savetxt(sequence / f'frame-{index:06d}.pose.txt', matrix, fmt='%.9e')
    return sequence


def write_image_folder(path, odometry=False, names='seconds'):
    poses, stamps = planar_poses(), seconds()
    for index, stamp in enumerate(stamps):
        name = stamp if names == 'seconds' else stamp.replace('.', '')
        write_image(path / 'images' / f'{name}.png', index)
    truth = tum_lines(stamps, positions(poses), base_rotations(poses))
    (path / 'trajectory.tum').write_text(truth)
    if odometry:
        (path / 'odometry.tum').write_text(
            tum_lines(stamps, positions(poses) + np.array([5.0, 0, 0]), base_rotations(poses))
        )
    return path


def write_traverse(path, places=range(FRAMES)):
    for place in places:
        write_image(path / f'Image{place:03d}.jpg', place)
    return path
