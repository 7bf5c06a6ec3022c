"""The demo: render a building, map it, and localize a run with the ROS node."""
