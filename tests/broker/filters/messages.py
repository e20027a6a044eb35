"""Stored messages and compiled rules for tests of filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec.encode import write
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.types import Described, Symbol
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule import CompiledRule, compile_rule
from twinbus.broker.message_record import RecordFields, expiry_time, make_header, make_record, parse_record
from twinbus.model.rule import RuleDescription, SqlAction, SqlFilter, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

ENQUEUED_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z."""


def span(ticks: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), ticks)


def stored(
    user: Mapping[str, object] | None = None,
    *,
    annotations: Mapping[str, object] | None = None,
    ttl_ms: int | None = None,
    session: bytes | None = None,
    **fields: Any,  # noqa: ANN401  # as Properties takes them
) -> bytes:
    """Return the record of a message with these application properties; `fields` go to the properties section."""
    fields.setdefault("message_id", "m-1")
    bare = build(properties=Properties(**fields), application_properties=user, body=data(b"body"))
    return stored_bare(bare, annotations=annotations, ttl_ms=ttl_ms, session=session)


def stored_bare(
    bare: bytes,
    *,
    annotations: Mapping[str, object] | None = None,
    ttl_ms: int | None = None,
    session: bytes | None = None,
) -> bytes:
    header = make_header(durable=True, priority=4, ttl_ms=ttl_ms)
    pairs = bytearray()
    for name, value in (annotations or {}).items():
        write(pairs, Symbol(name))
        write(pairs, value)
    return make_record(
        RecordFields(
            header,
            bare,
            ENQUEUED_MS,
            expiry_time(header, ENQUEUED_MS),
            session_id=session,
            annotation_count=2 * len(annotations or {}),
            annotations=bytes(pairs),
        )
    )


def message_of(record: bytes) -> Message:
    return Message(parse_record(record).bare_message)


def sql(expression: str, action: str | None = None, /, **parameters: tuple[str, str]) -> CompiledRule:
    """Compile a rule; each parameter is a kind and a text."""
    values = {f"@{name}": Value(*parameter) for name, parameter in parameters.items()}
    return compile_rule(
        RuleDescription(
            name="rule",
            filter=SqlFilter(expression=expression, parameters=values),
            action=SqlAction(expression=action, parameters=values) if action is not None else None,
        )
    )


def matches(expression: str, record: bytes, **parameters: tuple[str, str]) -> bool:
    return sql(expression, None, **parameters).matches(MessageView(record, sequence=77))
