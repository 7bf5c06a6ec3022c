"""The position-image map: building, storing, searching, growing and pruning it."""
