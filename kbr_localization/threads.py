"""How many threads linear algebra uses in the programs of this package."""

from __future__ import annotations

import os

VARIABLES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


def prefer_one_thread() -> None:
    """
    Let linear algebra use one thread in this process, unless the environment says otherwise.

    The matrices of a frame are so small that several threads gain nothing; they lose much where
    another program keeps one of the cores busy, because the others spin until it is done. Must be
    called before NumPy is imported.
    """
    if not any(variable in os.environ for variable in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, '1'))
