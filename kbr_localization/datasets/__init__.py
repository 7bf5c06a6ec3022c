"""Runs of a robot: frames with images, odometry and, where known, the reference pose."""

from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack

__all__ = ['Dataset', 'Frame', 'OdometryTrack']
