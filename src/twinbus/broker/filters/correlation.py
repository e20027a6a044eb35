"""Correlation filters: a few properties, each equal to a value.

Owns: which system properties they name. They are evaluated and looked up like any filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.constants import constants
from twinbus.broker.filters.nodes import Compare, Constant, Node, Property, all_of, user_address
from twinbus.broker.filters.system import number_of

if TYPE_CHECKING:
    from twinbus.model.rule import CorrelationFilter

_FIELDS: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}


def predicate_of(description: CorrelationFilter) -> Node:
    """All of its conditions; a filter without any is true for all messages."""
    wanted: list[Node] = []
    for field, name in _FIELDS.items():
        text = getattr(description, field)
        if text is not None:
            wanted.append(Compare("=", Property(number_of(name), name), Constant(text)))
    for name, value in constants(description.properties, "the property").items():
        wanted.append(Compare("=", Property(user_address(name), name), Constant(value)))
    return all_of(wanted)
