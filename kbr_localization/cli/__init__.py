"""The command `kbr`: arguments in, library calls, text or JSON out."""

import sys

from kbr_localization.programs import start
from kbr_localization.workers import prefer_one_thread

prefer_one_thread()


def main() -> None:
    sys.exit(start('kbr', 'kbr_localization.cli.app'))
