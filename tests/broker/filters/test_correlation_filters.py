"""A correlation filter: each of its properties is equal, to the letter."""

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


def matches(record: bytes, **wanted: Any) -> bool:  # noqa: ANN401  # as CorrelationFilter takes them
    wanted["properties"] = {name: Value(*value) for name, value in wanted.get("properties", {}).items()}
    description = RuleDescription(name="r", filter=CorrelationFilter(**wanted))
    return compile_rule(description).matches(MessageView(record))


@pytest.mark.parametrize(("wanted", "field"), FIELDS.items())
def test_each_field_is_compared_to_the_letter(wanted: str, field: str) -> None:
    fields: dict[str, Any] = {field: "Value"}
    record = stored(**fields)
    assert matches(record, **{wanted: "Value"})
    assert not matches(record, **{wanted: "value"})
    assert not matches(record, **{wanted: ""})
    assert not matches(stored(), **{wanted: "Value"})


@pytest.mark.parametrize(
    ("found", "text"), [(UUID(int=7), "00000000-0000-0000-0000-000000000007"), (ULong(7), "7"), (b"\x07", "07")]
)
def test_ids_of_any_type_are_compared_as_text(found: object, text: str) -> None:
    record = stored(message_id=found, correlation_id=found)
    assert matches(record, message_id=text, correlation_id=text)


@pytest.mark.parametrize(
    ("value", "wanted", "is_equal"),
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
def test_the_senders_properties_are_compared_by_value_and_kind(
    value: object,
    wanted: tuple[str, str],
    is_equal: bool,  # noqa: FBT001  # a column of the table
) -> None:
    assert matches(stored({"Color": value}), properties={"color": wanted}) is is_equal


def test_all_conditions_have_to_hold() -> None:
    record = stored({"color": "red"}, subject="important", reply_to="john")
    wanted = {"label": "important", "reply_to": "john", "properties": {"color": ("string", "red")}}
    assert matches(record, **wanted)
    assert not matches(record, **{**wanted, "to": "there"})
    assert not matches(record, **{**wanted, "properties": {"color": ("string", "red"), "size": ("int", "1")}})


def test_without_conditions_it_is_true_as_a_true_filter_is() -> None:
    assert matches(stored())
    assert compile_rule(RuleDescription(name="r", filter=TrueFilter())).matches(MessageView(stored()))
    assert not compile_rule(RuleDescription(name="r", filter=FalseFilter())).matches(MessageView(stored()))


def test_a_value_that_is_not_of_its_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the property 'size' is 'big', which is no int"):
        matches(stored(), properties={"size": ("int", "big")})
