"""Bags that are compressed: read like others, refused where they would not fit when unpacked."""

from collections import namedtuple
import io
import struct

from bag_helpers import bag, drive, images
from kbr_localization.datasets import bag_sizes
from kbr_localization.datasets.bag_reader import TYPESTORE
from kbr_localization.datasets.rosbag import BagRun
from kbr_localization.datasets.unpacked_size import unpacked_bound
from kbr_localization.errors import DatasetError
import lz4.frame
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin, Writer
import yaml

try:
    from compression import zstd
except ImportError:
    from backports import zstd

MODES = {
    'file': CompressionMode.FILE,
    'message': CompressionMode.MESSAGE,
    'storage': CompressionMode.STORAGE,
}
PLUGINS = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
WAYS = [('file', 'mcap'), ('file', 'sqlite3'), ('message', 'sqlite3'), ('storage', 'mcap')]
MEGABYTE = 1 << 20
PLENTY = 1 << 40
Usage = namedtuple('Usage', 'free')


def recompressed(source, path, mode, storage):
    """Write the messages of a bag into another one that is compressed."""
    with Reader(source) as reader:
        writer = Writer(path, version=9, storage_plugin=PLUGINS[storage])
        writer.set_compression(MODES[mode], CompressionFormat.ZSTD)
        with writer:
            added = {
                c.topic: writer.add_connection(c.topic, c.msgtype, typestore=TYPESTORE)
                for c in reader.connections
            }
            for connection, time_ns, data in reader.messages():
                writer.write(added[connection.topic], time_ns, data)
    return path


def repeated(size):
    """Zstandard that stands for zeros, by blocks of 128 KiB in four bytes each."""
    blocks = [(1 << 17) << 3 | 1 << 1] * (size >> 17) + [1]
    head = b'\x28\xb5\x2f\xfd' + bytes([0, 7 << 3])
    return head + b''.join(block.to_bytes(3, 'little') + b'\0' * (block != 1) for block in blocks)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    shape = (64, 96)
    return bag(tmp_path_factory.mktemp('bags') / 'plain', drive(), images(shape=shape))


@pytest.mark.parametrize(('mode', 'storage'), WAYS)
def test_compressed_bags_are_read_like_others(plain, tmp_path, mode, storage):
    run, other = BagRun(plain), BagRun(recompressed(plain, tmp_path / 'bag', mode, storage))
    assert len(run) == len(other) == 3
    for one, two in zip(run, other, strict=True):
        np.testing.assert_array_equal(one.load_image(), two.load_image())
        np.testing.assert_array_equal(one.odometry, two.odometry)


@pytest.mark.parametrize(('mode', 'storage'), WAYS)
def test_what_does_not_fit_is_refused_before_it_is_unpacked(
    plain, tmp_path, monkeypatch, mode, storage
):
    path = recompressed(plain, tmp_path / 'bag', mode, storage)
    monkeypatch.setattr(bag_sizes.shutil, 'disk_usage', lambda _: Usage(10_000))
    monkeypatch.setattr(bag_sizes, '_memory', lambda: 3_000)
    monkeypatch.setattr(Reader, 'open', lambda *_: pytest.fail('it was unpacked'))
    if mode == 'message':  # these are looked at one by one, as they lie in the file
        monkeypatch.undo()
        monkeypatch.setattr(bag_sizes, '_memory', lambda: 3_000)
    what = 'more than the 0.0 GB that .* has left' if mode == 'file' else 'half of the memory'
    with pytest.raises(DatasetError, match=what) as caught:
        BagRun(path)
    assert '\n' not in str(caught.value) and 'reindex' not in str(caught.value)


def test_a_file_that_claims_to_be_small_is_refused(plain, tmp_path, monkeypatch):
    path = recompressed(plain, tmp_path / 'bag', 'file', 'sqlite3')
    free = 10**9
    monkeypatch.setattr(bag_sizes.shutil, 'disk_usage', lambda _: Usage(free))
    file = next(path.glob('*.zstd'))
    declared = b'\x28\xb5\x2f\xfd\x20\x05'  # a single segment of five bytes
    blocks = ((1 << 17) << 3 | 1 << 1).to_bytes(3, 'little') + b'\0'
    file.write_bytes(declared + blocks * (free // (1 << 17) + 1))
    with pytest.raises(DatasetError, match='unpacked it may take more than'):
        BagRun(path)


@pytest.mark.parametrize('where', ['chunk', 'index'])
def test_a_chunk_that_claims_to_be_small_is_refused(plain, tmp_path, monkeypatch, where):
    path = recompressed(plain, tmp_path / 'bag', 'storage', 'mcap')
    file = next(path.glob('*.mcap'))
    data = bytearray(file.read_bytes())
    at = data.index(b'\x28\xb5\x2f\xfd')
    bomb = repeated(8 * MEGABYTE)
    if where == 'chunk':
        end = at + len(bomb)
        data[at:end] = bomb
    else:  # an index that says that the chunk lies in the middle of another record
        hidden = len(data) - 37
        record = struct.pack('<QQQIIQ', 0, 0, 1, 0, 4, len(bomb))
        chunk = record[:-8] + b'zstd' + record[-8:] + bomb
        listed = struct.pack('<QQQQIQ', 0, 0, 0, 0, 0, 0)
        index = bytearray(listed + struct.pack('<I', 4) + b'zstd' + struct.pack('<QQ', 0, 0))
        struct.pack_into('<QQ', index, 16, hidden + 9, len(chunk))
        struct.pack_into('<QQ', index, len(index) - 16, len(bomb), 1)
        attached = struct.pack('<BQ', 0x09, 9 + len(chunk)) + struct.pack('<BQ', 6, len(chunk))
        summary = hidden + len(attached) + len(chunk)
        footer = struct.pack('<BQQQI', 2, 20, summary, 0, 0) + b'\x89MCAP0\r\n'
        listed = struct.pack('<BQ', 8, len(index)) + bytes(index)
        data = data[:hidden] + attached + chunk + listed + footer
    file.write_bytes(data)
    monkeypatch.setattr(bag_sizes, '_memory', lambda: MEGABYTE)
    with pytest.raises(DatasetError, match='half of the memory'):
        BagRun(path)


def test_chunks_of_one_moment_are_added_up():
    apart = [(0, 10, 5), (11, 20, 7), (21, 30, 6)]
    assert bag_sizes._most_at_once(apart) == 7
    assert bag_sizes._most_at_once([*apart, (5, 25, 10)]) == 17
    assert bag_sizes._most_at_once([(3, 3, 4)] * 3) == 12
    assert bag_sizes._most_at_once([]) == 0


PACKERS = {
    'zstd': zstd.compress,
    'zstd with sums': lambda data: zstd.compress(
        data, options={zstd.CompressionParameter.checksum_flag: 1}
    ),
    'lz4': lz4.frame.compress,
    'lz4 with sums': lambda data: lz4.frame.compress(
        data, content_checksum=True, block_checksum=True, store_size=False
    ),
}


@pytest.mark.parametrize('pack', PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize('size', [0, 1, 1000, 300_000, 5_000_000])
@pytest.mark.parametrize('kind', ['zeros', 'noise', 'text'])
def test_the_bound_holds_and_is_near(pack, size, kind):
    rng = np.random.default_rng(0)
    data = {
        'zeros': bytes(size),
        'noise': rng.bytes(size),
        'text': (b'image of a wall ' * (size // 16 + 1))[:size],
    }[kind]
    packed = pack(data)
    stream = io.BytesIO(b'before' + packed * 2 + b'after')
    stream.seek(6)
    bound = unpacked_bound(stream, 2 * len(packed), PLENTY)
    assert 2 * size <= bound <= 2.1 * size + 2 * 4 * MEGABYTE


def test_a_byte_that_is_repeated_counts_as_often_as_it_is():
    block = (1000 << 3 | 1 << 1 | 1).to_bytes(3, 'little') + b'\0'
    frame = repeated(0)[:6] + block
    assert zstd.decompress(frame) == bytes(1000)
    assert unpacked_bound(io.BytesIO(frame), len(frame), PLENTY) == 1000
    # behind a frame that is skipped, and with the number of a dictionary
    skipped = bytes.fromhex('502a4d1803000000') + b'any'
    assert unpacked_bound(io.BytesIO(skipped + frame), 100, PLENTY) == 1000
    numbered = frame[:4] + bytes([2, frame[5], 9, 9]) + block
    assert unpacked_bound(io.BytesIO(numbered), len(numbered), PLENTY) == 1000


def test_what_cannot_be_compressed_counts_as_it_is():
    packed = lz4.frame.compress(np.random.default_rng(0).bytes(1000))
    assert unpacked_bound(io.BytesIO(packed), len(packed), PLENTY) == 1000


def test_no_more_is_counted_than_is_asked_for():
    stream = io.BytesIO(repeated(64 * MEGABYTE))
    assert MEGABYTE < unpacked_bound(stream, len(stream.getvalue()), MEGABYTE) < 2 * MEGABYTE
    assert stream.tell() < 100


@pytest.mark.parametrize('cut', range(0, 60, 3))
def test_what_is_cut_off_counts_as_far_as_it_goes(cut):
    packed = zstd.compress(bytes(MEGABYTE))
    assert unpacked_bound(io.BytesIO(packed[:cut]), len(packed), PLENTY) <= 9 * (1 << 17)


def test_metadata_that_are_none_are_named(plain, tmp_path):
    path = recompressed(plain, tmp_path / 'bag', 'file', 'mcap')
    for text in ('[1, 2', 'a: 1', yaml.safe_dump({'rosbag2_bagfile_information': [1]}), ''):
        (path / 'metadata.yaml').write_text(text)
        with pytest.raises(DatasetError, match=r'cannot read bag .*: metadata\.yaml: '):
            BagRun(path)
