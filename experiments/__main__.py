"""Run all experiments one after the other, or only assemble the page of their results."""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import sys

from experiments import common, report

NAMES = (
    'kbr_fig2',
    'kbr_fig3',
    'kbr_fig4',
    'kbr_table1',
    'kreg_fig1',
    'kreg_fig3',
    'mbksr_fig3',
    'mbksr_fig4',
    'mbksr_fig6',
    'convergence',
    'slides_regression',
)
"""In the order of the papers; each is a module of this package with a `main`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every experiment with the same options; `--table` runs none."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = common.parser('All experiments of the papers.')
    parser.add_argument('--table', action='store_true', help='assemble the page, run nothing')
    options = parser.parse_args(given)
    if options.table:
        report.write_page(options.out)
        return
    for name in NAMES:
        importlib.import_module(f'experiments.{name}').main(given)


if __name__ == '__main__':
    main()
