"""Public datasets as they are on disk, one module for each format."""
