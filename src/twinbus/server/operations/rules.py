"""Operations on the rules of a subscription.

Owns: how a rule is written in AMQP. Rules are changed where entities are: in the catalogue first. Listen is enough for
these, as in Service Bus; over HTTP it takes Manage.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.types import Described, Timestamp, ULong
from twinbus.broker.filters.constants import constant
from twinbus.broker.filters.values import Instant, Span
from twinbus.model.errors import InvalidArgument
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter, Value
from twinbus.model.times import TICKS_PER_MS, moment_of, timespan
from twinbus.server.operations.outcomes import carry_out, nothing, success

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.model.rule import Filter
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

RULE: Final = ULong(0x13700000004)
EMPTY_ACTION: Final = ULong(0x13700000005)
SQL_ACTION: Final = ULong(0x13700000006)
SQL_FILTER: Final = ULong(0x1370000006)
TRUE_FILTER: Final = ULong(0x1370000007)
FALSE_FILTER: Final = ULong(0x1370000008)
CORRELATION_FILTER: Final = ULong(0x1370000009)
MAX_PAGE: Final = 1_000
_CORRELATED: Final = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)


def add(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Add a rule."""
    rule = _read(arguments)
    carry_out(_changed(subject.administration.create_rule(subject.subscription.path, rule)), reply)


def remove(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Delete a rule."""
    name = arguments.text("rule-name")
    carry_out(_changed(subject.administration.delete_rule(subject.subscription.path, name)), reply)


def enumerate_rules(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """List rules, in the order of their making."""
    skip, top = arguments.number("skip", lowest=0, default=0), arguments.number("top", lowest=1, default=100)
    rules = [rule.description for rule in subject.subscription.rules.values()][skip : skip + min(top, MAX_PAGE)]
    reply(success({"rules": [{"rule-description": _written(rule)} for rule in rules]}) if rules else nothing())


async def _changed(change: Coroutine[None, None, object]) -> dict[str, object]:
    await change
    return {}


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(arguments: Arguments) -> RuleDescription:
    described = arguments.part("rule-description")
    action = described.part("sql-rule-action") if described.has("sql-rule-action") else None
    expression = action.text_or_none("expression") if action is not None else None
    return RuleDescription(
        name=arguments.text("rule-name"),
        filter=_read_filter(described),
        action=SqlAction(expression=expression) if expression else None,
    )


def _read_filter(described: Arguments) -> Filter:
    kinds = [name for name in ("sql-filter", "correlation-filter") if described.has(name)]
    if len(kinds) > 1:
        raise InvalidArgument("rule-description has a sql-filter and a correlation-filter; it has one of them")
    if not kinds:
        return TrueFilter()
    found = described.part(kinds[0])
    if kinds[0] == "sql-filter":
        return SqlFilter(expression=found.text("expression"))
    values = {name.replace("-", "_"): found.text_or_none(name) for name in _CORRELATED}
    properties = found.mapping("properties") or {}
    return CorrelationFilter(**values, properties={_name(key): value_of(value) for key, value in properties.items()})


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidArgument(f"{key!r:.60} names a property of a correlation-filter: that can be done by text only")
    return str(key)


_KINDS: Final[tuple[tuple[type, str, Callable[[Any], str]], ...]] = (
    (bool, "boolean", lambda value: str(value).lower()),
    (Timestamp, "dateTime", lambda value: moment_of(int(value)).isoformat()),
    (int, "int", lambda value: str(int(value))),
    (float, "double", lambda value: repr(float(value))),
    (str, "string", str),
    (uuid.UUID, "guid", str),
    (bytes, "binary", lambda value: base64.b64encode(value).decode()),
)
"""How values of AMQP are written in a rule; the first type that fits."""


def value_of(value: object) -> Value:
    """An AMQP value, as a rule has it."""
    for of_type, kind, write in _KINDS:
        if isinstance(value, of_type):
            try:
                text = write(value)
            except OverflowError:
                raise InvalidArgument(f"{value!r:.60} is no time from the year 1 to 9999") from None
            is_long = kind == "int" and not -(2**31) <= int(text) < 2**31
            return Value("long" if is_long else kind, text)
    raise InvalidArgument(f"{value!r:.60} is no value that a rule can compare with")


# --- writing ----------------------------------------------------------------------------------------------------------


def _written(rule: RuleDescription) -> Described:
    action = Described(EMPTY_ACTION, [])
    if rule.action is not None:
        action = Described(SQL_ACTION, [rule.action.expression])
    return Described(RULE, [_written_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _written_filter(found: Filter) -> Described:
    if isinstance(found, SqlFilter):
        return Described(SQL_FILTER, [found.expression])
    if isinstance(found, TrueFilter):
        return Described(TRUE_FILTER, [])
    if isinstance(found, FalseFilter):
        return Described(FALSE_FILTER, [])
    values: list[object] = [getattr(found, name.replace("-", "_")) for name in _CORRELATED]
    properties = {name: _amqp_value(value) for name, value in found.properties.items()}
    return Described(CORRELATION_FILTER, [*values, properties])


def _amqp_value(value: Value) -> object:
    """Read as filters read it: rules that came over HTTP or from a file spell values in other ways than this node."""
    found = constant(value, "a property")
    if isinstance(found, Instant):
        return Timestamp(found.ticks // TICKS_PER_MS)
    return timespan(found.ticks // TICKS_PER_MS) if isinstance(found, Span) else found
