"""Operations on the rules of a subscription.

Owns: how a rule is written in AMQP. Rules are changed where entities are: in the catalogue first. Listen is enough for
these, as in Service Bus; over HTTP it takes Manage.
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
    """List rules, in the order of their making."""
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


# --- reading ----------------------------------------------------------------------------------------------------------


def _parse_rule(arguments: Arguments) -> RuleDescription:
    described = arguments.nested("rule-description")
    action = described.nested("sql-rule-action") if described.has("sql-rule-action") else None
    expression = action.text_or_none("expression") if action is not None else None
    return RuleDescription(
        name=arguments.text("rule-name"),
        filter=_parse_filter(described),
        action=SqlAction(expression=expression) if expression else None,
    )


def _parse_filter(description: Arguments) -> Filter:
    kinds = [name for name in ("sql-filter", "correlation-filter") if description.has(name)]
    if len(kinds) > 1:
        raise InvalidArgument("rule-description has a sql-filter and a correlation-filter; it has one of them")
    if not kinds:
        return TrueFilter()
    found = description.nested(kinds[0])
    if kinds[0] == "sql-filter":
        return SqlFilter(expression=found.text("expression"))
    values = {name.replace("-", "_"): found.text_or_none(name) for name in _CORRELATION_FIELDS}
    properties = found.mapping("properties") or {}
    return CorrelationFilter(
        **values, properties={_property_name(key): to_rule_value(value) for key, value in properties.items()}
    )


def _property_name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidArgument(f"{key!r:.60} names a property of a correlation-filter: that can be done by text only")
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
"""How values of AMQP are written in a rule; the first type that fits."""


def to_rule_value(value: object) -> Value:
    """An AMQP value, as a rule has it."""
    for of_type, kind, write in _VALUE_KINDS:
        if isinstance(value, of_type):
            try:
                text = write(value)
            except OverflowError:
                raise InvalidArgument(f"{value!r:.60} is no time from the year 1 to 9999") from None
            is_long = kind == "int" and not -(2**31) <= int(text) < 2**31
            return Value("long" if is_long else kind, text)
    raise InvalidArgument(f"{value!r:.60} is no value that a rule can compare with")


# --- writing ----------------------------------------------------------------------------------------------------------


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
    """Read as filters read it: rules that came over HTTP or from a file spell values in other ways than this node."""
    found = parse_value(value, "a property")
    if isinstance(found, Instant):
        return Timestamp(found.ticks // TICKS_PER_MS)
    return timespan(found.ticks // TICKS_PER_MS) if isinstance(found, Duration) else found
