"""From a robot that drives to a run for the map."""
