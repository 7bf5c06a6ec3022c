"""Maps without known poses: poses from odometry and loop closures of images."""
