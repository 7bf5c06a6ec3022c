"""Every public class and function of kernels/ refuses bad input by name, with shape and remedy."""

from typing import Any

from kbr_localization import kernels
from kbr_localization.errors import KernelError
from kernel_calls import CALLS
import numpy as np
import pytest

NAN, TEXT = float('nan'), 'text'
BAD: dict[str, dict[str, Any]] = {
    'optional': {
        'NaN': np.full((6, 2), NAN),
        'flat': np.ones(6),
        'empty': np.empty((0, 2)),
        'text': [['a', 'b']],
    },
    'points': {
        'NaN': np.full((6, 2), NAN),
        'flat': np.ones(6),
        'empty': np.empty((0, 2)),
        'text': [['a', 'b']],
        'digits': [['1', '2']] * 6,
        'dates': np.full((6, 2), np.datetime64('2020-01-01')),
        'masked': np.ma.masked_equal(np.arange(12.0).reshape(6, 2), 3.0),
        'None': None,
    },
    'weights': {
        'NaN': np.full(6, NAN),
        'length': np.ones(5),
        'matrix': np.ones((6, 2)),
        'None': None,
    },
    'columns': {'NaN': np.full(6, NAN), 'length': np.ones(5), 'scalar': 1.0, 'None': None},
    'gram': {
        'NaN': np.full((6, 6), NAN),
        'rectangle': np.ones((6, 5)),
        'flat': np.ones(6),
        'empty': np.empty((0, 0)),
        'text': TEXT,
        'None': None,
    },
    'positive': {
        'zero': 0.0,
        'negative': -1.0,
        'NaN': NAN,
        'infinite': np.inf,
        'text': TEXT,
        'array': np.ones(2),
        'None': None,
    },
    'column': {'none': [], 'text': [TEXT], 'negative': [-1], 'fraction': [0.5]},
    'number': {
        'zero': 0.0,
        'negative': -1.0,
        'NaN': NAN,
        'infinite': np.inf,
        'text': TEXT,
        'array': np.ones(2),
    },
    'negative': {'negative': -1.0, 'NaN': NAN, 'text': TEXT},
    'factor': {'NaN': NAN, 'text': TEXT, 'array': np.ones(2), 'None': None},
    'target': {'NaN': np.full((6, 2), NAN), 'length': np.ones(5), 'text': TEXT, 'None': None},
    'tolerance': {'negative': -1.0, 'all': 1.0, 'NaN': NAN, 'text': TEXT},
    'given': {'text': TEXT, 'number': 1.0},
    'scale': {
        'zero': 0.0,
        'negative': -1.0,
        'NaN': NAN,
        'text': TEXT,
        'None': None,
        'empty': np.empty(0),
        'cube': np.ones((2, 2, 2)),
    },
    'count': {'zero': 0, 'negative': -1, 'fraction': 1.5, 'text': TEXT},
    'seed': {'negative': -1, 'fraction': 1.5, 'text': TEXT},
    'point': {
        'NaN': np.full(2, NAN),
        'many': np.ones((3, 2)),
        'dimension': np.ones(3),
        'None': None,
    },
    'kernel': {'None': None, 'text': 'gaussian', 'number': 1.0},
    'object': {'None': None, 'text': TEXT, 'number': 1.0},
}

SPOILT = [
    pytest.param(entry, argument, value, id=f'{name}-{argument}-{what}')
    for name, entry in CALLS.items()
    for argument, kind in entry.kinds.items()
    for what, value in BAD[kind].items()
]


@pytest.mark.parametrize(('entry', 'argument', 'value'), SPOILT)
def test_bad_input_is_refused(entry, argument, value):
    with pytest.raises(KernelError, match=argument) as caught:
        entry.target(**{**entry.good, argument: value})
    message = str(caught.value)
    assert '\n' not in message
    assert 'expected' in message
    assert 'got' in message


@pytest.mark.parametrize('name', CALLS)
def test_good_input_is_accepted(name):
    CALLS[name].target(**CALLS[name].good)


def test_every_public_name_is_spoilt():
    # abstract classes, errors, tables, and what functions return are not called by users
    exempt = {
        'BAYES_RULES',
        'Kernel',
        'KernelGaussian',
        'LowRankGram',
        'NoMassError',
        'Noise',
        'PAPER_NAMES',
        'PermutationTest',
        'TraceKernel',
        'TunedRule',
    }
    covered = {name.split()[0].split('.')[0].split('()')[0] for name in CALLS}
    assert set(kernels.__all__) - exempt <= covered
