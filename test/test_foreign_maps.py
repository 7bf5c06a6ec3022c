"""Map files whose parts are of another kind or form than any map has: refused in words."""

import time

from command import assert_one_line, invoke
import h5py
from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
import numpy as np
import pytest


@pytest.mark.parametrize(
    'name, value, says',
    [
        ('image_shape', (96,), 'expected two integers'),
        ('image_shape', (96.0, 128.0), 'expected two integers'),
        ('image_shape', 'wide', 'expected two integers'),
        ('image_shape', (1 << 40, 1 << 40), 'pixels, expected at most'),
        ('format_version', -5, 'format_version is .*-5.* expected an integer from 1 on'),
        ('format_version', np.nan, 'format_version is .* expected an integer from 1 on'),
        ('format_version', [1, 2], 'format_version is .* expected an integer from 1 on'),
    ],
)
def test_attributes_of_the_wrong_type_are_refused_in_words(saved, name, value, says):
    with h5py.File(saved, 'r+') as file:
        file.attrs[name] = value
    with pytest.raises(MapError, match=says):
        KernelMap.load(saved)


@pytest.mark.parametrize('names', [[1], [[b'a']], 2.0])
def test_names_that_are_no_texts_are_refused_in_words(saved, names):
    with h5py.File(saved, 'r+') as file:
        del file['run_names']
        file['run_names'] = np.asarray(names)
    with pytest.raises(MapError, match=r'run_names is .* of shape .*: expected texts'):
        KernelMap.load(saved)


def test_a_group_in_the_place_of_an_array_is_refused_in_words(saved):
    with h5py.File(saved, 'r+') as file:
        del file['descriptors']
        file.create_group('descriptors')
    with pytest.raises(MapError, match='descriptors is a group: expected an array'):
        KernelMap.load(saved)


def test_groups_in_each_other_without_end_are_refused_at_once(saved):
    with h5py.File(saved, 'r+') as file:
        group = file['describer']
        for _ in range(1500):
            group = group.create_group('x')
    started = time.monotonic()
    assert_one_line(invoke('map', 'check', saved), 'map.h5', 'nested more than 16 deep')
    assert time.monotonic() - started < 20.0


def test_thousands_of_attributes_are_refused(saved):
    with h5py.File(saved, 'r+') as file:
        group = file.create_group('more')
        for number in range(1001):
            group.attrs[f'a{number}'] = number
    assert_one_line(invoke('map', 'check', saved), 'more has 1001 attributes')
