"""Where in a namespace each thing is: the paths that management asks for.

Owns: the paths, and that a name stays one: `news/Subscriptions/all` is no queue, and a slash or `..` in the name of a
rule would make it the address of something else. What else a name can be is for the namespace to say.
"""

from __future__ import annotations

from typing import Final

from twinbus.model import path as paths
from twinbus.model.errors import InvalidArgument

_UPWARDS: Final = (".", "..")
"""Segments that are resolved on the way: to delete the subscription `..` would be to delete its topic."""


def entity(path: str) -> str:
    """Of a queue or a topic."""
    found = paths.relative(path)
    is_elsewhere = any(segment in _UPWARDS for segment in found.split("/"))
    if not found or is_elsewhere or found.startswith("$") or paths.owner_of(found) != found:
        raise InvalidArgument(f"{path!r:.80} is no path of a queue or topic")
    return found


def subscription(topic: str, name: str) -> str:
    """Of one subscription."""
    return paths.subscription_path(entity(topic), _name(name, "subscription"))


def subscriptions(topic: str) -> str:
    """Of all that a topic has."""
    return f"{entity(topic)}/Subscriptions"


def rule(topic: str, subscription_name: str, name: str) -> str:
    """Of one rule."""
    return f"{rules(topic, subscription_name)}/{_name(name, 'rule')}"


def rules(topic: str, subscription_name: str) -> str:
    """Of all that a subscription has."""
    return f"{subscription(topic, subscription_name)}/Rules"


def _name(name: str, of: str) -> str:
    if not name or "/" in name or name in _UPWARDS:
        raise InvalidArgument(f"{name!r:.80} is no name of a {of}: it is not empty, and has no slash")
    return name
