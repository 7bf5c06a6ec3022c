"""From an image to a descriptor that has a positive definite kernel."""
