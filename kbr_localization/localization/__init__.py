"""Kernel Bayes localization on a position-image map; it knows nothing of ROS."""
