"""What a map file may be made of."""

import h5py
from kbr_localization.errors import MapError
from kbr_localization.localization.map import structure
from kbr_localization.localization.map.structure import check_structure
import numpy as np
import pytest


@pytest.fixture
def path(tmp_path):
    """File with an array in a group."""
    path = tmp_path / 'map.h5'
    with h5py.File(path, 'w') as file:
        file.create_dataset('group/array', data=np.arange(100.0))
    return path


def check(path, size=None):
    with h5py.File(path, 'r') as file:
        check_structure(file, path.stat().st_size if size is None else size)


def change(path, action):
    with h5py.File(path, 'r+') as file:
        action(file)


def test_a_plain_file_is_taken(path):
    check(path)


@pytest.mark.parametrize(
    'limit, value, says',
    [
        ('MOST_OBJECTS', 2, 'more than 2 parts'),
        ('MOST_ATTRIBUTES', 1, 'array has 2 attributes: expected at most 1'),
        ('_LARGEST_ATTRIBUTE', 15, 'second of group/array has 16 bytes'),
        ('_LARGEST_CHUNK', 399, 'group/cut lies in pieces larger than 399 bytes'),
    ],
)
def test_more_than_a_map_has_is_refused(path, monkeypatch, limit, value, says):
    def add(file):
        file['group/array'].attrs['first'] = 1.0
        file['group/array'].attrs['second'] = np.zeros(2)
        file.create_dataset('group/cut', data=np.zeros(100), chunks=(50,))

    change(path, add)
    check(path)
    monkeypatch.setattr(structure, limit, value)
    with pytest.raises(MapError, match=says):
        check(path)


def test_groups_are_nested_so_deep_and_no_deeper(path):
    change(path, lambda file: file.create_group('/'.join('a' * 16)))
    check(path)
    change(path, lambda file: file.create_group('/'.join('a' * 17)))
    with pytest.raises(MapError, match='nested more than 16 deep'):
        check(path)


def test_an_array_at_two_places_is_refused(path):
    change(path, lambda file: file.__setitem__('again', file['group/array']))
    with pytest.raises(MapError, match='stands at two places'):
        check(path)


def test_an_array_beyond_the_end_of_the_file_is_refused(path):
    with h5py.File(path, 'r') as file:
        end = file['group/array'].id.get_offset() + 800
    check(path, end)
    with pytest.raises(MapError, match='says it has 800 bytes, of which the file holds 799'):
        check(path, end - 1)


def test_an_array_in_pieces_that_are_more_than_the_file_is_refused(path):
    with h5py.File(path, 'w') as file:
        file.create_dataset('cut', data=np.zeros(100), chunks=(50,))
    check(path, 800)
    with pytest.raises(MapError, match='cut says it has 800 bytes, of which'):
        check(path, 799)


def test_an_array_that_nothing_was_written_of_is_refused_unless_it_is_compressed(path):
    empty = {'shape': (9,), 'chunks': (9,), 'dtype': 'f8'}
    change(path, lambda file: file.create_dataset('packed', compression=1, **empty))
    check(path)
    change(path, lambda file: file.create_dataset('plain', **empty))
    with pytest.raises(MapError, match='plain says it has 72 bytes, of which the file holds 0'):
        check(path)


def test_a_filter_of_another_library_is_refused(path):
    change(path, lambda file: file.create_dataset('lzf', data=np.zeros(9), compression='lzf'))
    with pytest.raises(MapError, match='lzf is compressed in a way that no map is'):
        check(path)
