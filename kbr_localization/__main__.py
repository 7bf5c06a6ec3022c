"""`python -m kbr_localization` is the same as `kbr`."""

from kbr_localization.cli import main

main()
