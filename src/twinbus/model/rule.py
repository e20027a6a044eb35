"""Rules of subscriptions: which messages from the topic a subscription receives, and how actions change them.

Owns the structure of rules and how they are stored. Must not know what expressions mean: `broker.filters` evaluates
them and may still refuse a rule that is valid here.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

DEFAULT_RULE: Final = "$Default"
MAX_RULE_NAME_CHARACTERS: Final = 50
MAX_EXPRESSION_CHARACTERS: Final = 1024
"""Maximum length of a filter or action expression."""
VALUE_KINDS: Final = ("string", "int", "long", "double", "boolean", "dateTime", "duration", "guid", "binary")
_NAME: Final = re.compile(r"\$Default|[A-Za-z0-9_$](?:[A-Za-z0-9._$-]*[A-Za-z0-9_$])?", re.IGNORECASE)


class Value(msgspec.Struct, frozen=True):
    """Typed value in a rule; `kind` is one of `VALUE_KINDS`, with the type names of XML Schema."""

    kind: str
    text: str
    """Value in XML notation: durations and times in ISO 8601, booleans as true or false, binary as base64."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument if `kind` is unknown."""
        if self.kind not in VALUE_KINDS:
            raise InvalidArgument(
                f"a value of a rule cannot be of type {self.kind!r:.40}; it can be {', '.join(VALUE_KINDS)}"
            )


class SqlFilter(msgspec.Struct, frozen=True, kw_only=True, tag="sql"):
    """Filter that matches messages for which an SQL expression is true."""

    expression: str
    parameters: dict[str, Value] = {}


class TrueFilter(msgspec.Struct, frozen=True, tag="true"):
    """Filter that matches all messages."""


class FalseFilter(msgspec.Struct, frozen=True, tag="false"):
    """Filter that matches no messages."""


class CorrelationFilter(msgspec.Struct, frozen=True, kw_only=True, tag="correlation"):
    """Filter that matches messages whose properties equal all values that are set here."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Value] = {}


class SqlAction(msgspec.Struct, frozen=True, kw_only=True):
    """SQL statements that change the messages that the filter matches."""

    expression: str
    parameters: dict[str, Value] = {}


Filter: TypeAlias = "SqlFilter | TrueFilter | FalseFilter | CorrelationFilter"


class RuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one rule."""

    name: str
    filter: SqlFilter | TrueFilter | FalseFilter | CorrelationFilter = TrueFilter()
    action: SqlAction | None = None
    created_ms: int = 0

    def __post_init__(self) -> None:
        """Raise an error if the name is invalid or an expression is too long."""
        if len(self.name) > MAX_RULE_NAME_CHARACTERS:
            raise ArgumentOutOfRange(
                f"a rule's name has {len(self.name)} characters; it can have {MAX_RULE_NAME_CHARACTERS}"
            )
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(f"{self.name!r:.80} is not a valid rule name: use letters, digits, '.', '-' and '_'")
        for part, expression in (("filter", self.filter), ("action", self.action)):
            if isinstance(expression, SqlFilter | SqlAction) and len(expression.expression) > MAX_EXPRESSION_CHARACTERS:
                length = len(expression.expression)
                raise ArgumentOutOfRange(f"the {part} has {length} characters; it can have {MAX_EXPRESSION_CHARACTERS}")
