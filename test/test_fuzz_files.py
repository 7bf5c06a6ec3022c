"""Damaged large maps and image headers: refused in one line, or they work."""

from dataclasses import replace
from pathlib import Path

from fuzzing import EXAMPLES
from kbr_localization.errors import MapError
from kbr_localization.localization.map import storage
from kbr_localization.localization.map.file import check_map
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import tiny_map
import numpy as np
import pytest


@pytest.fixture(scope='module')
def large_map(tmp_path_factory):
    """Bytes of a map whose arrays lie in one piece, and the map."""
    path = tmp_path_factory.mktemp('large') / 'map.h5'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, 'MAPPED_BYTES', 1 << 12)
        tiny = tiny_map()
        replace(tiny.subset(np.arange(2100) % len(tiny))).save(path)
        yield path.read_bytes(), KernelMap.load(path)


def test_damaged_large_maps_give_nothing_wrong(large_map, tmp_path):
    """What a map answers is what was written, or that it is damaged."""
    content, whole = large_map
    rng = np.random.default_rng(EXAMPLES)
    for number in range(EXAMPLES or 40):
        path = Path(tmp_path / f'{number}.h5')
        path.write_bytes(damage(content, rng))
        compare(path, whole)
        path.unlink()


def damage(content, rng):
    """Cut, insert, overwrite or flip a piece."""
    at, piece = int(rng.integers(len(content))), rng.bytes(int(rng.integers(1, 65)))
    flipped = bytes([content[at] ^ (1 << int(rng.integers(8)))])
    over, behind = at + len(piece), at + 1
    forms = [b'', piece + content[at:], piece + content[over:], flipped + content[behind:]]
    return content[:at] + forms[int(rng.integers(4))]


def compare(path, whole):
    try:
        check_map(path)
        loaded = KernelMap.load(path)
    except MapError as error:
        assert path.name in str(error) and '\n' not in str(error)
        return
    for name in ('poses', 'descriptors', 'stamps_ns', 'run_index'):
        np.testing.assert_array_equal(np.asarray(getattr(loaded, name)), getattr(whole, name))
    assert tuple(loaded.thumbnails) == tuple(whole.thumbnails)
