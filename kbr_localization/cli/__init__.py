"""The command `kbr`: arguments in, library calls, text or JSON out."""

from kbr_localization.threads import prefer_one_thread

prefer_one_thread()

from kbr_localization.cli.entry import main  # noqa: E402, I100

__all__ = ['main']
