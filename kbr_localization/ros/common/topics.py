"""What is wrong with a topic, in words for who named or remapped it."""

from __future__ import annotations

from kbr_localization.errors import ConfigurationError
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node


def refuse_another_type(node: Node, does: str, topic: str, error: Exception) -> None:
    """
    Raise ConfigurationError where another part of the node has other messages on a topic.

    `does`: what cannot be done with it. `error`: what rcl raised, which has no public name.
    """
    if 'incompatible type' not in str(error):
        return
    name = node.resolve_topic_name(topic)
    raise ConfigurationError(
        f'cannot {does} {topic!r} on {name}: the node has messages of another type there: remap '
        'one of them to a topic of its own'
    ) from error


def why_not_allowed(error: InvalidTopicNameException) -> str:
    """Return the first line of what ROS says of a name that it does not allow."""
    return str(error).partition('\n')[0].rstrip(':')
