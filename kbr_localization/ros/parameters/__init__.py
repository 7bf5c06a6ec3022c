"""Parameters, parameter files and launch arguments."""
