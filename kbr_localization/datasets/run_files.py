"""Which files a format looks for in the folder of a run."""

from __future__ import annotations

from pathlib import Path

from kbr_localization.datasets import cold, opening, run_folder
from kbr_localization.datasets.bag_sizes import METADATA
from kbr_localization.datasets.formats import (
    euroc,
    image_folder,
    kitti,
    seven_scenes,
    traverse,
    tum_rgbd,
)

NAMES = frozenset(
    {
        *image_folder.TRUTHS,
        image_folder.ODOMETRY,
        image_folder.LIST,
        kitti.TIMES,
        kitti.POSES,
        tum_rgbd.IMAGES,
        tum_rgbd.TRUTH,
        euroc.TABLE,
        euroc.SENSOR,
        traverse.SETTINGS,
        cold.PLACES.name,
        cold.ODOMETRY.name,
        cold.DRAWN,
        run_folder.NOTES,
        METADATA,
    }
)
ENDINGS = (
    *opening.BAG_SUFFIXES,
    *cold.IMAGE_SUFFIXES,
    *image_folder.SUFFIXES,
    seven_scenes.POSE_SUFFIX,
)


def has_meaning(path: Path) -> bool:
    """Whether a file of that name means something in the folder of a run."""
    name = path.name.lower()
    return name in NAMES or name.endswith(ENDINGS)
