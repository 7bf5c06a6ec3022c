"""Recorded runs as ROS topics."""
