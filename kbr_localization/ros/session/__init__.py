"""Between messages and answers, without rclpy: odometry, waiting images, the start, the belief."""
