"""Images of a drive behind those of a map that they join, and the record of how they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kbr_localization import se2
from kbr_localization.datasets import Frame
from kbr_localization.localization.map.describing import DescribedImage
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.mapping.base_frame import parameters_about
from kbr_localization.localization.mapping.solving import Solved
from kbr_localization.localization.mapping.trajectories import Indices
from kbr_localization.localization.mapping.wheels import PARAMETERS
from kbr_localization.se2 import FloatArray
import numpy as np


@dataclass(frozen=True)
class Drive:
    """
    Frames of a run that can be used, described: (m,), (m, d).

    `ends`: of those after which the odometry is broken, their numbers (e,).
    """

    frames: Sequence[Frame]
    images: Sequence[DescribedImage]
    ends: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @property
    def descriptors(self) -> np.ndarray:
        """Return what was described, (m, d)."""
        return np.array([image.descriptor for image in self.images])

    @property
    def odometry(self) -> FloatArray:
        """Return poses by the odometry, (m, 3)."""
        return np.array([frame.odometry for frame in self.frames])


def appended(
    kernel_map: KernelMap,
    name: str,
    drive: Drive,
    poses: FloatArray,
    covariances: FloatArray,
    closures: MappingRecord | None,
) -> KernelMap:
    """Put the images of a run, at poses (m, 3) with covariances (m, 3, 3), behind the map's."""
    controls = np.full((len(poses), 3), np.nan)
    following = controls.copy()
    controls[:-1] = se2.between(drive.odometry[:-1], drive.odometry[1:])
    following[:-1] = poses[1:]
    # what the odometry says across a break is no step
    controls[drive.ends] = following[drive.ends] = np.nan
    stamps = np.array([frame.stamp_ns for frame in drive.frames], dtype=np.int64)
    run = np.full(len(poses), len(kernel_map.run_names), dtype=kernel_map.run_index.dtype)
    shown = kernel_map.thumbnails
    if shown:
        shown = (*shown, *(image.thumbnail for image in drive.images))
    rows = kernel_map.descriptors[:]
    return replace(
        kernel_map,
        poses=np.concatenate([kernel_map.poses, poses]),
        descriptors=np.concatenate([rows, drive.descriptors.astype(rows.dtype)]),
        stamps_ns=np.concatenate([kernel_map.stamps_ns, stamps]),
        run_index=np.concatenate([kernel_map.run_index, run]),
        run_names=(*kernel_map.run_names, name),
        controls=np.concatenate([kernel_map.controls, controls]),
        next_poses=np.concatenate([kernel_map.next_poses, following]),
        thumbnails=shown,
        index=None,
        means=None,
        statistics=None,
        mapping=_record(kernel_map, drive.odometry, covariances, closures),
    )


def _record(
    kernel_map: KernelMap,
    odometry: FloatArray,
    covariances: FloatArray,
    closures: MappingRecord | None,
) -> MappingRecord | None:
    before = kernel_map.mapping
    if before is None and closures is None:
        return None
    if before is None:
        before = MappingRecord(
            kernel_map.poses,
            np.zeros((len(kernel_map), 3, 3)),
            np.zeros((len(kernel_map.run_names), PARAMETERS)),
            aligned=True,
        )
    whole = before.extended(odometry, covariances)
    if closures is None:
        return whole
    # runs of known poses and added images came without parameters
    lacking = max(len(kernel_map.run_names) - len(whole.parameters), 0)
    rows = np.concatenate([whole.parameters, np.zeros((lacking, PARAMETERS))])
    return replace(whole, parameters=rows).joined(closures)


def closures_of(solved: Solved, members: Indices, point: FloatArray, images: int) -> MappingRecord:
    """Record the closures of a run, `members` (m,) of whose images follow the map's (so many)."""
    place = np.full(int(members.max()) + 1, -1)
    place[:images] = np.arange(images)
    place[members] = images + np.arange(len(members))
    closures = solved.closures
    pairs = np.stack([place[closures.first], place[closures.second]], axis=1)
    empty = np.zeros((0, 3))
    return MappingRecord(
        empty,
        np.zeros((0, 3, 3)),
        parameters_about(solved.parameters[-1:], point),
        pairs,
        closures.chain,
        closures.relative,
        solved.misses,
        closures.score,
        solved.kept.astype(np.uint8),
    )
