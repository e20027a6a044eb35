"""Correlation filters match if each of their properties is equal, case-sensitively."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.broker.filters.messages import stored
from twinbus.amqp.types import Int, Timestamp, ULong
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule import compile_rule
from twinbus.model.errors import InvalidArgument
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, TrueFilter, Value

FIELDS = {
    "correlation_id": "correlation_id",
    "message_id": "message_id",
    "to": "to",
    "reply_to": "reply_to",
    "label": "subject",
    "session_id": "group_id",
    "reply_to_session_id": "reply_to_group_id",
    "content_type": "content_type",
}


def matches(record: bytes, **conditions: Any) -> bool:  # noqa: ANN401  # as CorrelationFilter takes them
    conditions["properties"] = {name: Value(*value) for name, value in conditions.get("properties", {}).items()}
    description = RuleDescription(name="r", filter=CorrelationFilter(**conditions))
    return compile_rule(description).matches(MessageView(record))


@pytest.mark.parametrize(("condition", "field"), FIELDS.items())
def test_fields_are_compared_case_sensitively(condition: str, field: str) -> None:
    fields: dict[str, Any] = {field: "Value"}
    record = stored(**fields)
    assert matches(record, **{condition: "Value"})
    assert not matches(record, **{condition: "value"})
    assert not matches(record, **{condition: ""})
    assert not matches(stored(), **{condition: "Value"})


@pytest.mark.parametrize(
    ("message_id", "text"), [(UUID(int=7), "00000000-0000-0000-0000-000000000007"), (ULong(7), "7"), (b"\x07", "07")]
)
def test_ids_of_any_type_are_compared_as_text(message_id: object, text: str) -> None:
    record = stored(message_id=message_id, correlation_id=message_id)
    assert matches(record, message_id=text, correlation_id=text)


@pytest.mark.parametrize(
    ("value", "expected", "is_equal"),
    [
        ("Red", ("string", "Red"), True),
        ("Red", ("string", "red"), False),
        (Int(2), ("int", "2"), True),
        (Int(2), ("long", "2"), True),
        (Int(2), ("double", "2"), True),
        (Int(2), ("string", "2"), False),
        ("2", ("int", "2"), False),
        (True, ("boolean", "true"), True),
        (True, ("int", "1"), False),
        (Timestamp(1_000), ("dateTime", "1970-01-01T00:00:01Z"), True),
        (UUID(int=7), ("guid", "00000000-0000-0000-0000-000000000007"), True),
        (b"\x01", ("binary", "AQ=="), True),
        (None, ("string", ""), False),
    ],
)
def test_application_properties_are_compared_by_value_and_kind(
    value: object,
    expected: tuple[str, str],
    is_equal: bool,  # noqa: FBT001  # a column of the table
) -> None:
    assert matches(stored({"Color": value}), properties={"color": expected}) is is_equal


def test_all_conditions_have_to_hold() -> None:
    record = stored({"color": "red"}, subject="important", reply_to="john")
    conditions = {"label": "important", "reply_to": "john", "properties": {"color": ("string", "red")}}
    assert matches(record, **conditions)
    assert not matches(record, **{**conditions, "to": "there"})
    assert not matches(record, **{**conditions, "properties": {"color": ("string", "red"), "size": ("int", "1")}})


def test_a_filter_without_conditions_matches_every_message() -> None:
    assert matches(stored())
    assert compile_rule(RuleDescription(name="r", filter=TrueFilter())).matches(MessageView(stored()))
    assert not compile_rule(RuleDescription(name="r", filter=FalseFilter())).matches(MessageView(stored()))


def test_a_value_that_does_not_match_its_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the property 'size' is 'big', not a valid int"):
        matches(stored(), properties={"size": ("int", "big")})
