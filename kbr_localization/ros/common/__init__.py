"""What every executable of the package needs."""
