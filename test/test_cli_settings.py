"""Values of `--set`: words that YAML reads otherwise, and the parameters of each method."""

from dataclasses import dataclass
import json

from command import assert_one_line, invoke
from kbr_localization.cli.settings import (
    configurations,
    parse_settings,
    with_settings,
    with_settings_of,
)
from kbr_localization.configuration import from_mapping, parameter, validate
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.methods.baselines import NearestConfig
from kbr_localization.localization.methods.registry import method_config
from map_helpers import tiny_map
import pytest


@dataclass(frozen=True)
class Words:
    """A configuration of words."""

    switch: str = parameter('off', 'a switch', choices=('on', 'off'))
    answer: str = parameter('no', 'an answer', choices=('yes', 'no', 'true', 'false'))
    year: str = parameter('2020', 'a year', choices=('2020', '2021'))
    name: str = parameter('', 'any text')
    flag: bool = parameter(False, 'a flag')

    def __post_init__(self) -> None:
        validate(self)


def given(*settings):
    return with_settings(Words(), parse_settings(settings))


@pytest.mark.parametrize(
    ('name', 'word'),
    [
        ('switch', 'on'),
        ('switch', 'off'),
        ('answer', 'yes'),
        ('answer', 'no'),
        ('year', '2021'),
        ('name', 'cellar'),
    ],
)
def test_a_word_is_taken_as_it_was_written(name, word):
    assert getattr(given(f'{name}={word}'), name) == word


@pytest.mark.parametrize(
    ('setting', 'says'),
    [
        ('year=yes', "'year': expected str, got True"),
        ('name=off', "'name': expected str, got False"),
        ('flag=2', "'flag': expected bool, got 2"),
        ('switch=maybe', "'switch': expected one of on, off, got 'maybe'"),
    ],
)
def test_what_fits_no_choice_is_refused(setting, says):
    with pytest.raises(ConfigurationError, match=says):
        given(setting)


@pytest.mark.parametrize('text', ['1e-9', '1e-09', '1e12', '+2E-3', '1E2', '3.0e-05', '7'])
def test_a_number_may_have_an_exponent_as_the_list_of_parameters_has_it(text):
    vision, chosen = configurations([f'delta={text}', 'vision.blur=1e0'])
    assert (chosen, vision.blur) == ({'delta': float(text)}, 1.0)


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('nan', 'expected a finite number, got nan'),
        ('1' + 400 * '0', 'expected a finite number, got inf'),
        ('1e-3m', r"expected float, got '1e-3m' \(str\)"),
        ('true', r'expected float, got True \(bool\)'),
    ],
)
def test_what_is_no_finite_number_is_refused(text, says):
    with pytest.raises(ConfigurationError, match=f"parameter 'delta': {says}"):
        configurations([f'delta={text}'])


def test_a_parameter_of_another_method_is_refused():
    kernel_map = tiny_map(20)
    changed = with_settings_of(kernel_map, 'knn-particle', ['neighbours=5', 'noise_scale=3'])
    config = method_config('knn-particle', changed)
    assert (config.neighbours, config.noise_scale) == (5, 3.0)
    with pytest.raises(ConfigurationError, match="unknown parameter 'neighbours'"):
        with_settings_of(kernel_map, 'algorithm1', ['neighbours=5'])


@pytest.mark.parametrize(
    ('setting', 'says'),
    [
        ('vision.word=10', r"'vision\.word': did you mean 'vision\.words'\? .* vision\.levels"),
        ('words=10', r"'words': did you mean 'vision\.words'\? .* points, "),
        ('point=10', "'point': did you mean 'points'"),
        ('vision.words=many', r"parameter 'vision\.words': expected int"),
        ('vision.patch_size=10', r'vision\.patch_size: expected a multiple of 4'),
    ],
)
def test_what_is_refused_is_named_as_it_has_to_be_typed(setting, says):
    with pytest.raises(ConfigurationError, match=says):
        configurations([setting])


def test_what_cannot_be_set_on_a_map_is_told():
    with pytest.raises(ConfigurationError, match=r"'vision\.words': is fixed in the map"):
        with_settings_of(tiny_map(20), 'kbr', ['vision.words=100'])
    with pytest.raises(ConfigurationError, match='the method nearest has no parameters'):
        with_settings_of(tiny_map(20), 'nearest', ['points=100'])
    with pytest.raises(ConfigurationError, match='there are none to be set'):
        from_mapping(NearestConfig, {'points': 100})


def test_the_parameters_of_every_method_can_be_listed():
    listed = json.loads(invoke('parameters', '--method', 'knn-particle', '--json').stdout)
    assert listed['neighbours']['default'] == 15
    assert 'neighbours' not in json.loads(invoke('parameters', '--json').stdout)
    assert_one_line(invoke('parameters', '--method', 'magic'), "unknown method 'magic'")


@pytest.mark.parametrize(
    ('setting', 'beside'),
    [
        ('vision.network_file=xfeat.onnx', 'vision.descriptor=onnx or learned_pyramid'),
        ('vision.mirror_outer=200', 'vision.projection=omnidirectional'),
    ],
)
def test_a_part_of_what_was_not_chosen_is_refused(setting, beside):
    with pytest.raises(ConfigurationError, match=f'no effect with .*: set {beside} beside it'):
        configurations([setting])
    needed = beside.partition(' or ')[0]
    assert configurations([setting, needed])[0] == configurations([needed, setting])[0]
