"""Messages for the tests that PyPI has not: the installed ones, or built from test/*_interface."""

import ctypes
import fcntl
import hashlib
from importlib.util import find_spec
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

FOLDER = Path(__file__).parent


def interface_environment(cache, package, folder, environment=()):
    """
    Make a package of messages importable here; give what processes need for it.

    `folder`: with its source beside this file. `environment`: what they need for others already.
    """
    before = dict(environment)
    if find_spec(package) is not None:
        return before
    source = FOLDER / folder
    for tool in ('cmake', 'c++'):
        if shutil.which(tool) is None:
            pytest.skip(f'{package} is not installed, and without {tool} it cannot be built')
    if not _share('rosidl_default_generators').is_dir():
        pytest.skip(f'{package} is not installed, nor are the wheels that build it (extra test)')
    install = cache / _fingerprint(source)
    with (cache / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the tests may be building it
        if not (install / 'built').is_file():
            _build(source, install)
    path = str(next(install.glob('lib/python3*/site-packages')))
    sys.path.append(path)
    known = {**os.environ, **before}
    paths = os.pathsep.join(filter(None, [known.get('PYTHONPATH', ''), path]))
    _load_libraries(sorted((install / 'lib').glob('*.so')))
    libraries = [str(install / 'lib'), known.get('LD_LIBRARY_PATH', '')]
    return {'PYTHONPATH': paths, 'LD_LIBRARY_PATH': ':'.join(filter(None, libraries))}


def _load_libraries(paths):
    """Load libraries that need each other; a running process takes no new LD_LIBRARY_PATH."""
    while paths:
        left = [path for path in paths if not _loaded(path)]
        assert len(left) < len(paths), f'cannot load {left}'
        paths = left


def _loaded(path):
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _share(package):
    return Path(sys.prefix, 'share', package)


def _fingerprint(source):
    files = sorted(path for path in source.rglob('*') if path.is_file())
    content = b''.join(path.read_bytes() for path in files)
    version = _share('rosidl_generator_py').joinpath('package.xml').read_bytes()
    return hashlib.sha256(content + version + sys.version.encode()).hexdigest()[:16]


def _build(source, install):
    env = {**os.environ, 'AMENT_PREFIX_PATH': sys.prefix}
    env['PATH'] = f'{Path(sys.executable).parent}:{env["PATH"]}'
    build = install / 'build'
    configure = [
        *('cmake', '-S', source, '-B', build, '-DBUILD_TESTING=OFF'),
        f'-DCMAKE_PREFIX_PATH={sys.prefix}',
        f'-DCMAKE_INSTALL_PREFIX={install}',
        f'-DPython3_EXECUTABLE={sys.executable}',
    ]
    for command in (configure, ['cmake', '--build', build, '--target', 'install', '-j', '2']):
        result = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    shutil.rmtree(build)
    (install / 'built').touch()
