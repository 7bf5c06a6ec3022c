"""Maps without known poses: poses from odometry and from images that show a place again."""
