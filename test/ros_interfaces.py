"""Messages for the tests that PyPI has not: the installed ones, or built from test/*_interface."""

import ctypes
import fcntl
import hashlib
from importlib.machinery import PathFinder
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

GENERATOR = Path(sys.prefix, 'share', 'rosidl_generator_py', 'package.xml')


def provide(package, folder, pytestconfig, monkeypatch):
    """Make a package of messages importable in a test and in the processes that it starts."""
    if PathFinder.find_spec(package) is not None:
        return
    if not (shutil.which('cmake') and shutil.which('c++') and GENERATOR.is_file()):
        pytest.skip(f'{package} is not installed; to build it takes cmake, c++, the extra test')
    source, cache = Path(__file__).with_name(folder), pytestconfig.cache.mkdir(package)
    files = sorted(path for path in source.rglob('*') if path.is_file())
    content = b''.join(path.read_bytes() for path in (Path(__file__), GENERATOR, *files))
    install = cache / hashlib.sha256(content + sys.version.encode()).hexdigest()[:16]
    with (cache / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the tests may be building it
        if not (install / 'built').is_file():
            _build(source, install)
    # a running process takes no new LD_LIBRARY_PATH
    for library in (install / 'lib').glob('*.so'):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    modules = str(next(install.glob('lib/python3*/site-packages')))
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setenv('PYTHONPATH', modules, prepend=os.pathsep)
    monkeypatch.setenv('LD_LIBRARY_PATH', str(install / 'lib'), prepend=os.pathsep)


def _build(source, install):
    env = {**os.environ, 'AMENT_PREFIX_PATH': sys.prefix}
    env['PATH'] = f'{Path(sys.executable).parent}:{env["PATH"]}'
    build = install / 'build'
    configure = [
        *('cmake', '-S', source, '-B', build, '-DBUILD_TESTING=OFF'),
        f'-DCMAKE_PREFIX_PATH={sys.prefix}',
        f'-DCMAKE_INSTALL_PREFIX={install}',
        '-DCMAKE_INSTALL_RPATH=$ORIGIN',  # the libraries find each other
        f'-DPython3_EXECUTABLE={sys.executable}',
    ]
    for command in (configure, ['cmake', '--build', build, '--target', 'install', '-j', '2']):
        result = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    shutil.rmtree(build)
    (install / 'built').touch()
