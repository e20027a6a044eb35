"""Operations on the rules of a subscription.

Owns: the encoding of rules in AMQP. Rules are changed through the catalogue, like entities. These operations need the
`Listen` right, as in Service Bus; over HTTP they need `Manage`.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.types import Described, Timestamp, ULong
from twinbus.broker.filters.values import Duration, Instant
from twinbus.broker.filters.xml_values import parse_value
from twinbus.model.errors import InvalidArgument
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter, Value
from twinbus.model.times import TICKS_PER_MS, datetime_of, timespan
from twinbus.server.amqp.management.responses import no_content, run_and_reply, success

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.model.rule import Filter
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply

RULE_DESCRIPTOR: Final = ULong(0x13700000004)
EMPTY_ACTION_DESCRIPTOR: Final = ULong(0x13700000005)
SQL_ACTION_DESCRIPTOR: Final = ULong(0x13700000006)
SQL_FILTER_DESCRIPTOR: Final = ULong(0x1370000006)
TRUE_FILTER_DESCRIPTOR: Final = ULong(0x1370000007)
FALSE_FILTER_DESCRIPTOR: Final = ULong(0x1370000008)
CORRELATION_FILTER_DESCRIPTOR: Final = ULong(0x1370000009)
MAX_PAGE_RULES: Final = 1_000
_CORRELATION_FIELDS: Final = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)


def add_rule(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Add a rule."""
    rule = _parse_rule(arguments)
    run_and_reply(_await_change(context.administration.create_rule(context.subscription.path, rule)), on_reply)


def remove_rule(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete a rule."""
    name = arguments.text("rule-name")
    run_and_reply(_await_change(context.administration.delete_rule(context.subscription.path, name)), on_reply)


def enumerate_rules(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """List rules in order of creation."""
    skip, top = (
        arguments.whole_number("skip", minimum=0, default=0),
        arguments.whole_number("top", minimum=1, default=100),
    )
    rules = [rule.description for rule in context.subscription.rules.values()][skip : skip + min(top, MAX_PAGE_RULES)]
    on_reply(
        success({"rules": [{"rule-description": _encode_rule(rule)} for rule in rules]}) if rules else no_content()
    )


async def _await_change(change: Coroutine[None, None, object]) -> dict[str, object]:
    await change
    return {}


# --- decoding ---------------------------------------------------------------------------------------------------------


def _parse_rule(arguments: Arguments) -> RuleDescription:
    description = arguments.nested("rule-description")
    action = description.nested("sql-rule-action") if description.has("sql-rule-action") else None
    expression = action.text_or_none("expression") if action is not None else None
    return RuleDescription(
        name=arguments.text("rule-name"),
        filter=_parse_filter(description),
        action=SqlAction(expression=expression) if expression else None,
    )


def _parse_filter(description: Arguments) -> Filter:
    kinds = [name for name in ("sql-filter", "correlation-filter") if description.has(name)]
    if len(kinds) > 1:
        raise InvalidArgument("rule-description has both a sql-filter and a correlation-filter: send only one")
    if not kinds:
        return TrueFilter()
    filter_arguments = description.nested(kinds[0])
    if kinds[0] == "sql-filter":
        return SqlFilter(expression=filter_arguments.text("expression"))
    values = {name.replace("-", "_"): filter_arguments.text_or_none(name) for name in _CORRELATION_FIELDS}
    properties = filter_arguments.mapping("properties") or {}
    return CorrelationFilter(
        **values, properties={_property_name(key): to_rule_value(value) for key, value in properties.items()}
    )


def _property_name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidArgument(f"a property of a correlation-filter is named {key!r:.60}; the name must be a string")
    return str(key)


_VALUE_KINDS: Final[tuple[tuple[type, str, Callable[[Any], str]], ...]] = (
    (bool, "boolean", lambda value: str(value).lower()),
    (Timestamp, "dateTime", lambda value: datetime_of(int(value)).isoformat()),
    (int, "int", lambda value: str(int(value))),
    (float, "double", lambda value: repr(float(value))),
    (str, "string", str),
    (uuid.UUID, "guid", str),
    (bytes, "binary", lambda value: base64.b64encode(value).decode()),
)
"""The encoding of AMQP values in a rule; the first matching type is used."""


def to_rule_value(value: object) -> Value:
    """Return an AMQP value as a value in a rule. Raise InvalidArgument if rules cannot compare such values."""
    for value_type, kind, write in _VALUE_KINDS:
        if isinstance(value, value_type):
            try:
                text = write(value)
            except OverflowError:
                raise InvalidArgument(f"{value!r:.60} is not a time from the year 1 to 9999") from None
            is_long = kind == "int" and not -(2**31) <= int(text) < 2**31
            return Value("long" if is_long else kind, text)
    raise InvalidArgument(f"{value!r:.60} is not a value that a rule can compare with")


# --- encoding ---------------------------------------------------------------------------------------------------------


def _encode_rule(rule: RuleDescription) -> Described:
    action = Described(EMPTY_ACTION_DESCRIPTOR, [])
    if rule.action is not None:
        action = Described(SQL_ACTION_DESCRIPTOR, [rule.action.expression])
    return Described(RULE_DESCRIPTOR, [_encode_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _encode_filter(rule_filter: Filter) -> Described:
    if isinstance(rule_filter, SqlFilter):
        return Described(SQL_FILTER_DESCRIPTOR, [rule_filter.expression])
    if isinstance(rule_filter, TrueFilter):
        return Described(TRUE_FILTER_DESCRIPTOR, [])
    if isinstance(rule_filter, FalseFilter):
        return Described(FALSE_FILTER_DESCRIPTOR, [])
    values: list[object] = [getattr(rule_filter, name.replace("-", "_")) for name in _CORRELATION_FIELDS]
    properties = {name: _amqp_value(value) for name, value in rule_filter.properties.items()}
    return Described(CORRELATION_FILTER_DESCRIPTOR, [*values, properties])


def _amqp_value(value: Value) -> object:
    """Return a value in a rule as an AMQP value, parsed in the same way as in filters.

    Rules that were created over HTTP or from a file use notations other than AMQP's.
    """
    parsed = parse_value(value, "a property")
    if isinstance(parsed, Instant):
        return Timestamp(parsed.ticks // TICKS_PER_MS)
    return timespan(parsed.ticks // TICKS_PER_MS) if isinstance(parsed, Duration) else parsed
