"""
Run a network in another process before it is run in this one.

A runtime ends its process when it is given some damaged networks, and others ask for more memory
than a robot has.
"""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
import os
import signal
import subprocess
import sys

from kbr_localization.errors import VisionError

LARGEST_OUTPUT = 1 << 20
"""Numbers of a descriptor."""
SECONDS = 120.0
_LATER = 5  # seconds until a trial ends itself
_LIBRARY_BYTES = 2 << 30  # address space of the libraries alone
_NO_LIBRARY = 77
_tried: set[tuple[str, bytes, tuple[int, ...]]] = set()
_CODE = """
import resource, signal, sys
memory, seconds, paths, shape, no_library = {arguments!r}
# nobody else ends it when the one that waits for it was killed
signal.alarm(seconds)
sys.path[:] = paths
try:
    import numpy, {module}
except ImportError:
    sys.exit(no_library)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
network, image = sys.stdin.buffer.read(), numpy.zeros(shape, numpy.float32)
try:
{run}
except (Exception, MemoryError) as error:
    print(' '.join(str(getattr(error, 'err', '') or error or 'not enough memory').split())[:200])
    sys.exit(1)
"""
_OPENCV_RUN = """
    net = cv2.dnn.readNetFromONNX(numpy.frombuffer(network, numpy.uint8))
    net.setInput(image)
    print(net.forward().size)
"""
_ONNXRUNTIME_RUN = """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(network, options, ['CPUExecutionProvider'])
    answers = session.run(None, {session.get_inputs()[0].name: image})
    print(sum(numpy.size(answer) for answer in answers))
"""


@dataclass(frozen=True)
class Runtime:
    """What runs a network: its name, its module, and the lines that print the answer's size."""

    name: str
    module: str
    run: str


OPENCV = Runtime('OpenCV', 'cv2', _OPENCV_RUN)
ONNXRUNTIME = Runtime('onnxruntime', 'onnxruntime', _ONNXRUNTIME_RUN)


def try_network(
    network: bytes,
    shape: tuple[int, ...],
    runtime: Runtime = OPENCV,
    largest: int = LARGEST_OUTPUT,
) -> None:
    """
    Run an ONNX network on zeros of a shape; what was tried once is not tried again.

    Where the runtime's module is missing nothing is tried. Raises VisionError for a network that
    the runtime refuses, that ends the process, or that takes more than `SECONDS`, half of the
    memory or `largest` numbers to answer.
    """
    key = (runtime.name, hashlib.sha256(network).digest(), shape)
    # a program may have Python inside of it, which is no file then
    if key not in _tried and sys.executable and _try(network, shape, runtime, largest):
        _tried.add(key)


def _try(network: bytes, shape: tuple[int, ...], runtime: Runtime, largest: int) -> bool:
    """Say whether it was tried."""
    paths = [path for path in sys.path if path]
    arguments = (_memory(), round(SECONDS) + _LATER, paths, shape, _NO_LIBRARY)
    code = _CODE.format(arguments=arguments, module=runtime.module, run=runtime.run)
    try:
        done = subprocess.run(
            [sys.executable, '-c', code],
            input=network,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise VisionError(f'it takes more than {SECONDS:g} s for one image') from error
    if done.returncode == _NO_LIBRARY:
        return False
    _check(done.returncode, done.stdout.decode(errors='replace').strip(), runtime, largest)
    return True


def _check(code: int, answer: str, runtime: Runtime, largest: int) -> None:
    if code < 0:
        raise VisionError(f'{runtime.name} crashes on it ({signal.Signals(-code).name})')
    if code > 0:
        raise VisionError(answer or f'{runtime.name} ends with {code} on it')
    if int(answer) > largest:
        raise VisionError(f'it returns {answer} numbers, expected at most {largest}')


def _memory() -> int:
    """Address space in bytes that a network may take."""
    physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return _LIBRARY_BYTES + physical // 2
