"""Parameter files with anything in them: a text for rcl or one line of the package's own."""

from pathlib import Path

from fuzzing import budget, damaged
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import ConfigurationError
from kbr_localization.ros.parameters.parameter_files import launch_file_parameters, shared_names
import pytest
import yaml

FILES = sorted((Path(__file__).parent / 'nav2_params').glob('*.yaml'))
KEYS = st.sampled_from(
    ['localization', '/**', '/*', 'amcl', 'ros__parameters', '/one/localization', '', 'map_file']
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | LEAVES, inner, max_size=4),
    max_leaves=12,
)
NAMESPACES = st.sampled_from(['', 'one', '/one/', 'fleet/one'])


def used(path, namespace):
    """All that launch files and nodes do with a parameter file."""
    assert isinstance(shared_names(['--params-file', str(path)], 'localization'), set)
    given_values = {'map_file': 'office.h5', 'autostart': True}
    try:
        text = launch_file_parameters(str(path), namespace, 'localization', given_values)
    except ConfigurationError as error:
        assert '\n' not in str(error) and 'params_file' in str(error)
        return None
    return yaml.compose(text)


@budget(150)
@given(tree=TREES, namespace=NAMESPACES)
def test_any_tree(tmp_path, tree, namespace):
    path = tmp_path / 'params.yaml'
    path.write_text(yaml.dump(tree), encoding='utf-8')
    used(path, namespace)


@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
@budget(15)
@given(data=st.data(), namespace=NAMESPACES)
def test_damaged_files_of_nav2(tmp_path, file, data, namespace):
    path = tmp_path / 'params.yaml'
    path.write_bytes(damaged(file.read_bytes()[:3000], data.draw))
    used(path, namespace)


@pytest.mark.parametrize(
    'text, says',
    [
        ('&a {x: *a}', 'is an alias used in what it stands for'),
        ('localization: &a {ros__parameters: {x: [*a]}}', 'is an alias'),
        ('? [1, 2]\n: {ros__parameters: {}}', 'expected names as keys'),
        ('localization: {? {a: 1} : 2}', 'expected names as keys'),
        ('{a: ' * 2000 + '1' + '}' * 2000, 'params_file'),
        ('a: !!python/object/apply:os.system ["false"]', None),
        ('\x00', 'params_file'),
    ],
    ids=['itself', 'in a list', 'list as a key', 'section as a key', 'deep', 'tag', 'zero'],
)
def test_what_yaml_allows_and_no_parameter_file_has(tmp_path, text, says):
    path = tmp_path / 'params.yaml'
    path.write_text(text, encoding='utf-8')
    assert shared_names(['--params-file', str(path)], 'localization') == set()
    if says is None:
        used(path, 'one')
        return
    with pytest.raises(ConfigurationError, match=says):
        launch_file_parameters(str(path), 'one', 'localization', {})
