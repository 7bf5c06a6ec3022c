"""The command `kbr`: arguments in, library calls, text or JSON out."""

from kbr_localization.cli.app import main

__all__ = ['main']
