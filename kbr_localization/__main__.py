"""Run `kbr` by `python -m kbr_localization`."""

from kbr_localization.cli import main

main()
