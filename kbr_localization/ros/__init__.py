"""ROS 2 nodes and message conversions; no mathematics."""

from kbr_localization.workers import prefer_one_thread

prefer_one_thread()
