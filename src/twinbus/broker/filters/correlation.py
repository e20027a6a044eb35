"""Correlation filters: a few properties, each equal to a value.

Owns: which system properties they name. They are evaluated and looked up like any filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.constants import parse_values
from twinbus.broker.filters.nodes import Comparison, Constant, Node, Property, conjunction, user_property_key
from twinbus.broker.filters.system import property_number

if TYPE_CHECKING:
    from twinbus.model.rule import CorrelationFilter

_CORRELATION_FIELDS: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}


def correlation_predicate(description: CorrelationFilter) -> Node:
    """All of its conditions; a filter without any is true for all messages."""
    wanted: list[Node] = []
    for field, name in _CORRELATION_FIELDS.items():
        text = getattr(description, field)
        if text is not None:
            wanted.append(Comparison("=", Property(property_number(name), name), Constant(text)))
    for name, value in parse_values(description.properties, "the property").items():
        wanted.append(Comparison("=", Property(user_property_key(name), name), Constant(value)))
    return conjunction(wanted)
