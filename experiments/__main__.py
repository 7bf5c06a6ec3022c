"""Run experiments, or only write the table of stored results."""

from collections.abc import Sequence
import importlib

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
)
"""In the order of the papers; each is a module of this package that defines `EXPERIMENT`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named experiments, or all of them; with `--table` none."""
    parser = common.parser('Experiments of the papers.')
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'of {", ".join(NAMES)}')
    parser.add_argument('--table', action='store_true', help='write the table, run nothing')
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f'expected names of {", ".join(NAMES)}, got {", ".join(sorted(unknown))}')
    if options.table:
        report.write_page(options.out)
        return
    for name in options.names or NAMES:
        common.run(importlib.import_module(f'experiments.{name}').EXPERIMENT, options)


if __name__ == '__main__':
    main()
