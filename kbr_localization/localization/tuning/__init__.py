"""Parameters by cross-validation over whole runs."""
