"""
Run a network in another process before it is run in this one.

OpenCV ends its process when it is given some damaged networks, and others ask for more memory than
a robot has.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

from kbr_localization.errors import VisionError

LARGEST_OUTPUT = 1 << 20
"""Numbers of a descriptor."""
SECONDS = 120.0
_LIBRARY_BYTES = 2 << 30  # address space of the libraries alone
_NO_LIBRARY = 77
_tried: set[tuple[bytes, tuple[int, ...]]] = set()
_CODE = """
import resource, sys
memory, paths, shape, no_library = {arguments!r}
sys.path[:] = paths
try:
    import cv2, numpy
except ImportError:
    sys.exit(no_library)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
try:
    network = cv2.dnn.readNetFromONNX(numpy.frombuffer(sys.stdin.buffer.read(), numpy.uint8))
    network.setInput(numpy.zeros(shape, numpy.float32))
    print(network.forward().size)
except (cv2.error, MemoryError) as error:
    print(' '.join(str(getattr(error, 'err', '') or 'not enough memory').split()))
    sys.exit(1)
"""


def try_network(network: bytes, shape: tuple[int, ...]) -> None:
    """
    Run an ONNX network on zeros of a shape; what was tried once is not tried again.

    Raises VisionError for one that OpenCV refuses, that ends the process, or that takes more than
    `SECONDS`, half of the memory or `LARGEST_OUTPUT` numbers to answer.
    """
    key = (hashlib.sha256(network).digest(), shape)
    # a program may have Python inside of it, which is no file then
    if key not in _tried and sys.executable:
        _try(network, shape)
        _tried.add(key)


def _try(network: bytes, shape: tuple[int, ...]) -> None:
    arguments = (_memory(), [path for path in sys.path if path], shape, _NO_LIBRARY)
    command = [sys.executable, '-c', _CODE.format(arguments=arguments)]
    try:
        done = subprocess.run(
            command, input=network, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise VisionError(f'it takes more than {SECONDS:g} s for one image') from error
    _check(done.returncode, done.stdout.decode(errors='replace').strip())


def _check(code: int, answer: str) -> None:
    if code == _NO_LIBRARY:
        return
    if code < 0:
        raise VisionError(f'OpenCV crashes on it ({signal.Signals(-code).name})')
    if code > 0:
        raise VisionError(answer or f'OpenCV ends with {code} on it')
    if int(answer) > LARGEST_OUTPUT:
        raise VisionError(f'it returns {answer} numbers, expected at most {LARGEST_OUTPUT}')


def _memory() -> int:
    """Address space in bytes that a network may take."""
    physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return _LIBRARY_BYTES + physical // 2
