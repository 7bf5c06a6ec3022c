"""Runs of a robot: frames with images, odometry and, where known, the reference pose."""

from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.opening import open_dataset

__all__ = ['Dataset', 'Frame', 'OdometryTrack', 'open_dataset']
