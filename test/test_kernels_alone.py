"""The toolbox stands alone: NumPy and SciPy suffice, and what else is missing is named."""

from pathlib import Path
import re
import runpy
import subprocess
import sys

import pytest
import setuptools

ROOT = Path(__file__).parents[1]
HEAVY = ('cv2', 'h5py', 'joblib', 'matplotlib', 'rich', 'skimage', 'sklearn', 'typer', 'yaml')
SLOW_PARTS = ('cluster', 'integrate', 'interpolate', 'ndimage', 'optimize', 'signal', 'stats')
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {missing!r}:
            raise ModuleNotFoundError('No module named ' + repr(name), name=name.split('.')[0])
sys.meta_path.insert(0, Refuse())
"""


def run(program, missing=()):
    code = REFUSE.format(missing=set(missing)) + program
    return subprocess.run(
        [sys.executable, '-c', code], check=False, capture_output=True, text=True, timeout=60
    )


def test_a_posterior_needs_numpy_and_scipy_only_and_loads_no_slow_part():
    done = run(
        'import numpy as np\n'
        'from kbr_localization.kernels import GaussianKernel, KernelBayesRule, KernelMean\n'
        'x = np.linspace(-1.0, 1.0, 9)[:, None]\n'
        'kernel = GaussianKernel(0.1, normalised=False)\n'
        'rule = KernelBayesRule(kernel, kernel, x, x, 1e-3, 1e-6)\n'
        'prior = KernelMean.of_sample(kernel, x)\n'
        'print(round(float(rule.posterior(prior, [0.5]).normalised().mean()[0]), 1))\n'
        f'assert not set(sys.modules) & set({HEAVY!r})\n'
        "parts = {name.split('.')[1] for name in sys.modules if name.startswith('scipy.')}\n"
        f'assert not parts & set({SLOW_PARTS!r}), parts\n',
        HEAVY,
    )
    assert (done.returncode, done.stdout) == (0, '0.5\n'), done.stderr


def test_what_the_estimators_lack_is_named():
    done = run('import kbr_localization.kernels.estimators', HEAVY)
    assert 'pip install scikit-learn' in done.stderr


@pytest.mark.skipif(not (ROOT / 'setup.py').is_file(), reason='setup.py is not installed')
def test_what_pip_brings(monkeypatch):
    options = {}
    monkeypatch.setattr(setuptools, 'setup', options.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / 'setup.py'))
    assert options['install_requires'] == ['numpy', 'scipy']
    extras = {name: set(needs) for name, needs in options['extras_require'].items()}
    for module in ('h5py', 'opencv-python-headless', 'pyyaml', 'rich', 'typer>=0.9'):
        assert module in extras['app'] & extras['headless'] & extras['all']
    # the two builds of opencv share one module
    assert not extras['desktop'] & {'opencv-python-headless'}
    assert not extras['ros'] & {'opencv-python', 'opencv-python-headless'}
    parts = (extras[name] for name in ('ros', 'tools', 'app', 'learned'))
    assert set().union(*parts) == extras['all']
    scripts = re.findall(r'= *([\w.]+):(\w+)', str(options['entry_points']['console_scripts']))
    program = '\n'.join(f'import {module}\nassert callable({module}.{n})' for module, n in scripts)
    done = run(program, HEAVY)
    assert done.returncode == 0, done.stderr


ROS_MODULES = ('rclpy', 'geometry_msgs', 'rcl_interfaces', 'sensor_msgs', 'std_srvs')
SOURCE, INSTALL = 'source the setup file of ROS 2', "pip install '.[app]'"
BUILD, INFO = ['kbr', 'map', 'build', '.', '--out', 'map.h5'], ['kbr', 'map', 'info', 'no.h5']


@pytest.mark.parametrize(
    ('program', 'missing', 'remedy'),
    [
        ('localization_node', ROS_MODULES, SOURCE),
        ('player_node', ROS_MODULES, SOURCE),
        ('recorder_node', ROS_MODULES, SOURCE),
        ('localization_node', ('cv2',), INSTALL),
        (INFO, ('typer',), INSTALL),
        (INFO, ('h5py',), INSTALL),
        (BUILD, ('cv2',), INSTALL),
    ],
)
def test_a_program_says_what_is_missing_and_where_it_comes_from(program, missing, remedy):
    code = f'sys.argv = {program!r}\nfrom kbr_localization.cli import main\nmain()'
    if isinstance(program, str):
        code = f'from kbr_localization import programs\nsys.exit(programs.{program}())'
        if missing != ROS_MODULES:
            pytest.importorskip('rclpy')
    done = run(code, missing)
    assert (done.returncode, done.stderr.count('\n')) == (2, 1)
    assert remedy in done.stderr and any(module in done.stderr for module in missing)
