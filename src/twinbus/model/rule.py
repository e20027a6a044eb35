"""Rules of a subscription: which messages of the topic it gets, and what is changed in them.

Owns: what a rule is, and how it is kept. What its expressions mean is for `broker.filters` to say: a rule that is made
here may still be refused there.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

DEFAULT_RULE: Final = "$Default"
MAX_RULE_NAME_CHARACTERS: Final = 50
MAX_EXPRESSION_CHARACTERS: Final = 1024
"""Characters of a filter or an action."""
VALUE_KINDS: Final = ("string", "int", "long", "double", "boolean", "dateTime", "duration", "guid", "binary")
_NAME: Final = re.compile(r"\$Default|[A-Za-z0-9_$](?:[A-Za-z0-9._$-]*[A-Za-z0-9_$])?", re.IGNORECASE)


class Value(msgspec.Struct, frozen=True):
    """A value in a rule, with the type that its owner gave it: `kind` is one of `KINDS`, as XML schema calls them."""

    kind: str
    text: str
    """As XML writes it: durations and times are ISO 8601, booleans true or false, binary is base64."""

    def __post_init__(self) -> None:
        """Refuse a type that no value has."""
        if self.kind not in VALUE_KINDS:
            raise InvalidArgument(
                f"a value of a rule cannot be of type {self.kind!r:.40}; it can be {', '.join(VALUE_KINDS)}"
            )


class SqlFilter(msgspec.Struct, frozen=True, kw_only=True, tag="sql"):
    """Messages for which an expression is true."""

    expression: str
    parameters: dict[str, Value] = {}


class TrueFilter(msgspec.Struct, frozen=True, tag="true"):
    """All messages."""


class FalseFilter(msgspec.Struct, frozen=True, tag="false"):
    """None."""


class CorrelationFilter(msgspec.Struct, frozen=True, kw_only=True, tag="correlation"):
    """Messages of which each of these is equal."""

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
    """What is changed in a message that the filter is true for."""

    expression: str
    parameters: dict[str, Value] = {}


Filter: TypeAlias = "SqlFilter | TrueFilter | FalseFilter | CorrelationFilter"


class RuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One rule."""

    name: str
    filter: SqlFilter | TrueFilter | FalseFilter | CorrelationFilter = TrueFilter()
    action: SqlAction | None = None
    created_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse a name that no rule has, and expressions that are too long to be looked at."""
        if len(self.name) > MAX_RULE_NAME_CHARACTERS:
            raise ArgumentOutOfRange(
                f"a rule's name has {len(self.name)} characters; it can have {MAX_RULE_NAME_CHARACTERS}"
            )
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(f"{self.name!r:.80} is no name of a rule: it has letters, digits, '.', '-' and '_'")
        for what, expression in (("filter", self.filter), ("action", self.action)):
            if isinstance(expression, SqlFilter | SqlAction) and len(expression.expression) > MAX_EXPRESSION_CHARACTERS:
                length = len(expression.expression)
                raise ArgumentOutOfRange(f"the {what} has {length} characters; it can have {MAX_EXPRESSION_CHARACTERS}")
