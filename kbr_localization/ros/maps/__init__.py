"""What a node writes: the map that grows, and the last pose."""
