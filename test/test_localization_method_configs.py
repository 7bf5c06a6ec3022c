"""The configurations of the methods, and what a map keeps of them."""

from dataclasses import fields, replace

from kbr_localization import se2
from kbr_localization.errors import ConfigurationError, LocalizationError
from kbr_localization.localization.methods.configs import AdaptedConfig, PrintedConfig
from kbr_localization.localization.methods.method_configs import (
    config_class,
    CONFIGS,
    known_values,
    length_scale,
    method_config,
    parameter_value,
    with_values,
)
from kbr_localization.localization.methods.registry import make_localizer, METHODS
from map_helpers import map_along
import numpy as np
import pytest

BASELINES = [name for name in METHODS if name != 'kbr']


@pytest.fixture(scope='module')
def kernel_map():
    """Map of a way round a corner."""
    steps = np.column_stack([np.full(29, 0.4), np.zeros(29), np.full(29, 0.06)])
    return map_along(se2.chain(np.zeros(3), steps))


def test_every_method_has_a_configuration_with_described_ranges():
    assert list(CONFIGS) == list(METHODS)
    for method in BASELINES:
        for field in fields(CONFIGS[method]):
            assert field.metadata['description'], (method, field.name)
            assert field.metadata['choices'] or field.type in ('bool', 'int', 'float')


@pytest.mark.parametrize('method', [m for m in BASELINES if fields(CONFIGS[m])])
def test_what_is_set_for_a_method_is_that_methods_alone(kernel_map, method):
    name = fields(CONFIGS[method])[-1].name if method == 'dead-reckoning' else 'covariance_scale'
    changed = with_values(method, kernel_map, {name: 0.5})
    assert parameter_value(method, changed, name) == 0.5
    others = [m for m in BASELINES if m != method and fields(CONFIGS[m])]
    for other in others:
        assert method_config(other, changed) == method_config(other, kernel_map)
    assert changed.filter_config == kernel_map.filter_config
    assert getattr(make_localizer(method, changed).config, name) == 0.5
    with pytest.raises(ConfigurationError, match=name):
        method_config(method, with_values(method, kernel_map, {name: -1.0}))
    with pytest.raises(ConfigurationError, match="unknown parameter 'warp'"):
        method_config(method, with_values(method, kernel_map, {'warp': 1.0}))


def test_what_another_version_knew_is_left_out(kernel_map):
    kept = replace(kernel_map, baselines={'kmcf': {'points': 30, 'warp': 1}})
    assert method_config('kmcf', kept) == replace(method_config('kmcf', kernel_map), points=30)
    assert known_values('kmcf', {'points': 30, 'warp': 1}) == {'points': 30}
    assert known_values('magic', {'points': 30}) == {}
    with pytest.raises(LocalizationError, match="unknown method 'magic'"):
        config_class('magic')


def test_algorithm_1_runs_as_printed(kernel_map):
    config = method_config('algorithm1', replace(kernel_map, poses=10.0 * kernel_map.poses))
    assert config.odometry_calibration == 'off'
    switches = {'sharpening', 'multi_step', 'bayes_rule', 'noise_scale', 'update_min_d'}
    assert switches.isdisjoint(field.name for field in fields(PrintedConfig))
    assert switches <= {field.name for field in fields(AdaptedConfig)}
    assert config == PrintedConfig()


def test_lengths_shrink_with_the_map(kernel_map):
    assert length_scale(kernel_map.poses) == 1.0
    small = replace(kernel_map, poses=kernel_map.poses * [0.05, 0.05, 1.0])
    scale = length_scale(small.poses)
    assert 0.05 < scale < 1.0
    for method in ('algorithm1', 'fkbf', 'knn-particle', 'gp-particle'):
        usual, shrunk = (method_config(method, m).position_bandwidth for m in (kernel_map, small))
        assert shrunk == pytest.approx(scale * usual)


def test_the_bandwidth_of_kmcf_reaches_from_image_to_image(kernel_map):
    def bandwidth(factor):
        poses = kernel_map.poses * [factor, factor, 1.0]
        return method_config('kmcf', replace(kernel_map, poses=poses)).position_bandwidth

    assert bandwidth(0.75) == pytest.approx(6.0 * 0.75 * 0.4, rel=1e-3)
    assert bandwidth(4.0) == 2.9
    scale = length_scale(kernel_map.poses * [0.05, 0.05, 1.0])
    assert bandwidth(0.05) == pytest.approx(scale)
    kept = with_values('kmcf', kernel_map, {'position_bandwidth': 0.3})
    assert method_config('kmcf', kept).position_bandwidth == 0.3
