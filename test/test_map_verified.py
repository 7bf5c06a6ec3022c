"""Arrays in a file whose blocks are verified: which of them, and when."""

import os
from types import SimpleNamespace

from kbr_localization.errors import MapError
from kbr_localization.localization.map import verified
from kbr_localization.localization.map.verified import (
    BLOCK_BYTES,
    checksums_of,
    VerifiedArray,
    WatchedFile,
)
import numpy as np
import pytest

DAMAGED = 3
"""A row, and block, that is not looked at when an array is opened."""


@pytest.fixture
def rows():
    """Twenty rows of a block each."""
    width = BLOCK_BYTES // 8
    return np.arange(20.0)[:, np.newaxis] + np.zeros(width)


@pytest.fixture
def damaged(rows):
    """Return these with a wrong number in one of them."""
    sums = checksums_of(rows)
    rows[DAMAGED, 7] = -1.0
    return VerifiedArray(rows, sums, 'rows')


@pytest.mark.parametrize(
    'key',
    [3, -17, slice(1, 4), slice(3, None), slice(4, 2, -1), (3, 0), (slice(2, 5), 1), [5, 3]],
    ids=str,
)
def test_rows_are_verified_up_to_the_last_one_of_them(damaged, key):
    with pytest.raises(MapError, match=f'at bytes {DAMAGED * BLOCK_BYTES} to'):
        damaged[key]


@pytest.mark.parametrize(
    'key', [4, slice(1, 3), slice(4, None), slice(6, 3, -1), (4, slice(2)), [5, 2]], ids=str
)
def test_rows_beside_a_damaged_one_are_used(damaged, rows, key):
    np.testing.assert_array_equal(damaged[key], rows[key])


def test_a_block_is_verified_once(rows):
    array = VerifiedArray(rows, checksums_of(rows), 'rows')
    assert array[DAMAGED, 0] == DAMAGED
    rows[DAMAGED] = -1.0
    assert array[DAMAGED, 0] == -1.0


def test_a_copy_is_one_and_a_view_is_none(rows):
    array = VerifiedArray(rows, checksums_of(rows), 'rows')
    assert np.shares_memory(np.asarray(array), rows)
    assert not np.shares_memory(np.array(array), rows)
    assert np.asarray(array, dtype=np.float32).dtype == np.float32


def test_a_file_that_lost_its_last_byte_is_told(tmp_path):
    path = tmp_path / 'data'
    path.write_bytes(bytes(100))
    with path.open('rb') as file:
        watched = WatchedFile(file, 99)
    os.truncate(path, 99)
    watched.has_changed('data')
    os.truncate(path, 98)
    with pytest.raises(MapError, match='data was cut off to 98 bytes'):
        watched.has_changed('data')


def test_within_a_tick_of_a_write_there_may_be_another_one(tmp_path, monkeypatch):
    path, written, tick = tmp_path / 'data', 10**18, 100_000_000
    path.write_bytes(bytes(100))
    os.utime(path, ns=(written, written))
    with path.open('rb') as file:
        watched = WatchedFile(file, 100)
    clock = SimpleNamespace(time_ns=lambda: written + clock.later, later=0)
    monkeypatch.setattr(verified, 'time', clock)
    for later, changed in ((0, True), (tick // 2, True), (2 * tick, False)):
        clock.later = later
        assert watched.has_changed('data') == changed
    os.utime(path, ns=(written + tick, written + tick))
    clock.later = 9 * tick
    assert [watched.has_changed('data') for _ in range(2)] == [True, False]
