"""Encoded images: measured before they are decoded, and what decoding changes is counted."""

import os
import resource
import shutil
import struct
import zlib

from command import invoke
import cv2
from helpers import textured_image, write_tiny_cold_run
from kbr_localization.datasets.image_file import (
    decode_image,
    encode_jpeg,
    encoded_bytes,
    ImageFile,
)
from kbr_localization.datasets.image_message import decode_raw_image
from kbr_localization.datasets.image_size import encoded_size, MAX_PIXELS, VARIABLE
from kbr_localization.errors import DatasetError
import numpy as np
import pytest


def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))


def png_bomb(side):
    """Make a PNG of `side` x `side` black pixels in a thousandth of their size."""
    head = chunk(b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 0, 0, 0, 0))
    compressor = zlib.compressobj(9)
    rows = [compressor.compress(bytes(side + 1)) for _ in range(side)]
    data = b''.join([*rows, compressor.flush()])
    return b'\x89PNG\r\n\x1a\n' + head + chunk(b'IDAT', data) + chunk(b'IEND', b'')


def segment(marker, data):
    return b'\xff' + bytes([marker]) + struct.pack('>H', len(data) + 2) + data


def scan_bomb(side, scans):
    """Make a progressive JPEG each of whose scans says in a few bytes that nothing changes."""
    shape = struct.pack('>BHHB', 8, side, side, 1) + bytes([1, 0x11, 0])
    tables = segment(0xDB, b'\0' + b'\x01' * 64)
    codes = bytes([1] + [0] * 15)
    words = segment(0xC4, b'\x00' + codes + b'\x00') + segment(0xC4, b'\x10' + codes + b'\xe0')
    runs = -(-((side // 8) ** 2) // 32767)
    bits = ('0' + '1' * 14) * runs
    bits += '1' * (-len(bits) % 8)
    packed = bytes(int(''.join(octet), 2) for octet in zip(*[iter(bits)] * 8, strict=True))
    scan = segment(0xDA, bytes([1, 1, 0x10, 1, 63, 0])) + packed.replace(b'\xff', b'\xff\x00')
    return b'\xff\xd8' + tables + segment(0xC2, shape) + words + scan * scans + b'\xff\xd9'


def test_a_jpeg_of_scans_without_end_is_not_decoded(monkeypatch):
    """Each goes over all of the image: 57 kB of them would take 8 s, and 10 MB half an hour."""
    assert decode_image(scan_bomb(64, 5), 'few').shape == (64, 64)
    monkeypatch.setattr(cv2, 'imdecode', None)
    with pytest.raises(DatasetError, match='image many: 1000 scans, expected at most 100'):
        decode_image(scan_bomb(4096, 1000), 'many')


def jpeg_bomb(side):
    """Make a JPEG whose header says that it has `side` x `side` pixels."""
    data = bytearray(cv2.imencode('.jpg', textured_image(0))[1].tobytes())
    at = data.index(b'\xff\xc0') + 5
    end = at + 4
    data[at:end] = struct.pack('>HH', side, side)
    return bytes(data)


@pytest.mark.parametrize('behind', [b'', bytes(4096), bytes(100_000), b'\xff' * 5000 + b'film'])
def test_a_jpeg_is_whole_whatever_is_behind_it(behind):
    whole = encode_jpeg(textured_image(0), 'it')
    # of a thumbnail, whose end is not that of the image
    thumbnail = segment(0xE1, encode_jpeg(textured_image(1, (8, 8)), 'thumbnail'))
    whole = whole[:2] + thumbnail + whole[2:]
    np.testing.assert_array_equal(decode_image(whole + behind, 'it'), decode_image(whole, 'it'))
    for length in (len(thumbnail) + 3, len(whole) // 2, len(whole) - 2):
        with pytest.raises(DatasetError, match=r'broken image it: .* a JPEG that is cut off'):
            decode_image(whole[:length] + behind.replace(b'\xff', b'\0'), 'it')


@pytest.mark.parametrize('suffix', ['.jpeg', '.png'])
def test_what_is_cut_off_is_not_copied(tmp_path, suffix):
    file = tmp_path / f'it{suffix}'
    whole = cv2.imencode(suffix, textured_image(0))[1].tobytes()
    file.write_bytes(whole)
    assert encoded_bytes(ImageFile(file), 'it') == whole
    kind = suffix[1:].upper()
    for length in (len(whole) // 2, len(whole) - 20):
        file.write_bytes(whole[:length])
        for read in (lambda: encoded_bytes(ImageFile(file), 'it'), ImageFile(file)):
            with pytest.raises(DatasetError, match=f'a {kind} that is cut off after {length} b'):
                read()


@pytest.mark.parametrize('bomb', [png_bomb, jpeg_bomb])
def test_an_image_of_gigabytes_is_refused_before_it_is_decoded(bomb):
    data = bomb(20_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match='image it: 20000x20000 pixels, expected at most'):
        decode_image(data, 'it')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_the_limit_can_be_set(monkeypatch):
    data = png_bomb(64)
    monkeypatch.setenv(VARIABLE, '4095')
    with pytest.raises(DatasetError, match=f'at most 4095 in all.*{VARIABLE}'):
        decode_image(data, 'it')
    with pytest.raises(DatasetError, match='64x64 pixels'):
        decode_raw_image('mono8', 64, 64, 64, bytes(4096))
    monkeypatch.setenv(VARIABLE, '4096')
    assert decode_image(data, 'it').shape == (64, 64)
    monkeypatch.setenv(VARIABLE, 'many')
    with pytest.raises(DatasetError, match='expected a positive number'):
        decode_image(data, 'it')


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
@pytest.mark.parametrize('shape', [(7, 11), (480, 640, 3), (1, 1)])
def test_the_size_is_that_of_the_decoded_image(suffix, shape):
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1] if suffix == '.jpg' else []
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    data = cv2.imencode(suffix, image, options)[1].tobytes()
    assert encoded_size(data) == shape[1::-1]


@pytest.mark.parametrize('suffix', ['.bmp', '.tiff', '.webp', '.ppm'])
def test_images_of_other_kinds_are_refused(suffix):
    data = cv2.imencode(suffix, textured_image(0).reshape(96, 128, -1)[..., [0, 0, 0]])[1]
    with pytest.raises(DatasetError, match='bytes of another kind'):
        decode_image(data.tobytes(), 'it')


def test_the_usual_cameras_are_far_from_the_limit():
    assert MAX_PIXELS >= 7680 * 4320


def test_a_pipe_or_a_device_in_the_place_of_an_image_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'a.png')
    (tmp_path / 'b.png').symlink_to('/dev/zero')
    for name in ('a.png', 'b.png'):
        with pytest.raises(DatasetError, match='is a device or a pipe'):
            ImageFile(tmp_path / name)()


def test_images_that_are_converted_are_counted_in_the_summary(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    files = sorted((run / 'std_cam').iterdir())
    for number, file in enumerate(files[:7]):
        grey = textured_image(number)
        deep = grey.astype(np.uint16) * 256
        alpha = np.dstack([grey] * 4)
        cv2.imwrite(str(file.with_suffix('.png')), deep if number < 5 else alpha)
        file.unlink()
    settings = ('--set', 'vision.words=20', '--set', 'vision.vocabulary_samples=500')
    for jobs in (1, 2):
        out = tmp_path / f'{jobs}.h5'
        result = invoke('map', 'build', run, '--out', out, '--jobs', jobs, *settings)
        assert result.returncode == 0, result.stderr
        assert 'converted: 5 x image of 16 bits to 8, 2 x image with transp' in result.stderr
    for command, name in (('localize', 'a.tum'), ('report', 'a.html')):
        result = invoke(command, tmp_path / '1.h5', run, '--out', tmp_path / name)
        assert ' x image of 16 bits to 8' in result.stderr
    plain = write_tiny_cold_run(tmp_path / 'plain', frames=3)
    result = invoke('localize', tmp_path / '1.h5', plain, '--out', tmp_path / 'b.tum')
    assert result.returncode == 0 and 'converted:' not in result.stderr
    shutil.rmtree(run)
