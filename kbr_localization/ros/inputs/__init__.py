"""What the node listens to. Callbacks only convert and hand on."""
