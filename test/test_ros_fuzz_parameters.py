"""Parameters of the running node set to anything: taken in range, or refused in one line."""

from contextlib import ExitStack

from fuzzing import budget
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.parameters.settings import names, SettableNode, Settings
import pytest
import rclpy
from rclpy.context import Context
from rclpy.parameter import Parameter

pytestmark = pytest.mark.ros
INTEGER = st.integers(-(2**63), 2**63 - 1)
VALUES = (
    INTEGER
    | st.floats()
    | st.booleans()
    | st.text(max_size=8)
    | st.lists(st.text(max_size=4), max_size=3)
    | st.lists(st.floats(), min_size=1, max_size=3)
)
NAMES = st.sampled_from(names()) | st.text(max_size=12)


@pytest.fixture(scope='module')
def node():
    context, domain = Context(), ExitStack()
    rclpy.init(args=[], context=context, domain_id=domain.enter_context(own_domain()))
    node = SettableNode('fuzzed', context=context)
    node.settings = Settings(node)
    yield node
    node.destroy_node()
    rclpy.try_shutdown(context=context)
    domain.close()


@budget(200)
@given(changes=st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=3), at_once=st.booleans())
def test_any_value_is_taken_in_range_or_refused(node, changes, at_once):
    given_changes = [Parameter(name, value=value) for name, value in changes]
    before = (node.settings.config, node.settings.filter)
    if at_once:
        results = [node.set_parameters_atomically(given_changes)]
    else:
        results = node.set_parameters(given_changes)
    for result in results:
        assert result.successful or (result.reason and '\n' not in result.reason)
    if not any(result.successful for result in results):
        assert (node.settings.config, node.settings.filter) == before
    # what is in use is valid: their constructors check every value
    config, taken = node.settings.config, node.settings.filter
    assert NodeConfig(**vars(config)) == config and KbrConfig(**vars(taken)) == taken
