"""The ROS 2 face: nodes and message conversions, no mathematics."""
