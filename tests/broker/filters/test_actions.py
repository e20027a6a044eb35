"""SQL actions change the properties they name, and no other byte of the message."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.broker.filters.messages import ENQUEUED_MS, message_of, span, sql, stored, stored_bare
from twinbus.amqp.message import Message, Properties, Section, build, data, value
from twinbus.amqp.types import Byte, Decimal128, Float, Int, Symbol, Timestamp, UInt, ULong
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.message_record import HAS_TTL, due_time_of, parse_record, render_unlocked
from twinbus.model.limits import NamespaceLimits
from twinbus.model.rule import RuleDescription, SqlAction

MESSAGE = stored(
    {"color": "red", "quantity": Int(9), "Priority": Byte(3), "ratio": Float(0.5), "exact": 1.5, "nothing": None},
    subject="orders",
    reply_to="back",
    annotations={"x-opt-partition-key": "pk", "mine": 1},
)


def applied(action: str, record: bytes = MESSAGE, **parameters: tuple[str, str]) -> bytes:
    compiled = sql("1 = 1", action, **parameters).action
    assert compiled is not None
    return compiled.apply(record)


def user_of(record: bytes) -> dict[str, Any]:
    """Return the application properties without RuleName."""
    properties = message_of(record).application_properties
    assert isinstance(properties, dict)
    assert properties.pop("RuleName") == "rule"
    return properties


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        ("SET color = 'blue'", {"color": "blue"}),
        ("SET COLOR = 'blue';", {"color": "blue"}),
        ("SET user.color = 'blue'", {"color": "blue"}),
        ("SET [new one] = 1", {"new one": 1}),
        ("SET quantity = quantity / 2;", {"quantity": Int(4)}),
        ("SET quantity = quantity + 2147483648", {"quantity": 2_147_483_657}),
        ("SET quantity = quantity / 2.0", {"quantity": 4.5}),
        ("SET quantity = 'many'", {"quantity": "many"}),
        ("SET priority = 200", {"Priority": 200}),
        ("SET priority = -1", {"Priority": Byte(-1)}),
        ("SET ratio = 2", {"ratio": Float(2.0)}),
        ("SET exact = 2", {"exact": 2.0}),
        ("SET color = 1; SET color = color + 1", {"color": 2}),
        ("SET a = 1 SET b = a + 1\nSET c = b + 1", {"a": 1, "b": 2, "c": 3}),
        ("SET a = 1, SET b = 2; ;", {"a": 1, "b": 2}),
        ("SET a = color + '!'", {"a": "red!"}),
        ("SET a = NULL", {"a": None}),
        ("SET a = missing", {"a": None}),
        ("SET a = missing + 1", {"a": None}),
        ("SET a = TRUE", {"a": True}),
        ("SET a = 1.5", {"a": 1.5}),
        ("SET a = sys.Label", {"a": "orders"}),
        ("SET a = sys.EnqueuedTimeUtc", {"a": Timestamp(ENQUEUED_MS)}),
        ("SET a = p('color')", {"a": "red"}),
        ("SET a = priority", {"a": Byte(3)}),
    ],
)
def test_set_changes_a_property(action: str, changed: dict[str, object]) -> None:
    properties = user_of(applied(action))
    assert properties == {**user_of(applied("SET RuleName = 'rule'")), **changed}
    assert {name: type(properties[name]) for name in changed} == {name: type(value) for name, value in changed.items()}


@pytest.mark.parametrize("action", ["REMOVE color", "REMOVE user.COLOR;", "SET color = 1; REMOVE [color]"])
def test_remove_deletes_a_property(action: str) -> None:
    properties = user_of(applied(action))
    assert "color" not in properties
    assert properties["quantity"] == 9


def test_a_removed_property_can_be_set_again() -> None:
    assert user_of(applied("REMOVE color; SET was = color; SET color = 'x'")) | {} == {
        **user_of(applied("SET was = NULL")),
        "color": "x",
    }


def test_removing_a_missing_property_changes_nothing() -> None:
    assert user_of(applied("REMOVE missing")) == user_of(applied("SET RuleName = 'rule'"))


def test_names_that_differ_in_case_only_are_one_property() -> None:
    record = stored({"Color": 1, "color": 2})
    assert user_of(applied("SET COLOR = 3", record)) == {"Color": 3}
    assert user_of(applied("REMOVE COLOR", record)) == {}


def test_a_changed_message_carries_the_rule_name() -> None:
    description = RuleDescription(name="reds", action=SqlAction(expression="REMOVE x"))
    action = compile_rule(description).action
    assert action is not None
    assert message_of(action.apply(stored())).application_properties == {"RuleName": "reds"}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("MessageId", "message_id"),
        ("CorrelationId", "correlation_id"),
        ("To", "to"),
        ("Label", "subject"),
        ("Subject", "subject"),
        ("ReplyTo", "reply_to"),
        ("ContentType", "content_type"),
        ("SessionId", "group_id"),
        ("ReplyToSessionId", "reply_to_group_id"),
    ],
)
def test_set_changes_a_field_of_the_properties_and_no_other(name: str, field: str) -> None:
    before = message_of(MESSAGE).properties
    after = message_of(applied(f"SET sys.{name} = 'new'")).properties
    assert before is not None
    setattr(before, field, Symbol("new") if field == "content_type" else "new")
    assert after == before


@pytest.mark.parametrize(
    "name", ["CorrelationId", "To", "Label", "ReplyTo", "ContentType", "SessionId", "PartitionKey"]
)
def test_remove_makes_a_system_property_null(name: str) -> None:
    record = applied(f"SET sys.{name} = 'x'")
    removed = applied(f"REMOVE sys.{name}; SET a = sys.{name}", record)
    assert user_of(removed)["a"] is None
    assert applied(f"SET sys.{name} = NULL", record) == applied(f"REMOVE sys.{name}", record)


def test_numbers_and_uuids_become_ids() -> None:
    unique = UUID(int=5)
    action = compile_rule(
        RuleDescription(
            name="r", action=SqlAction(expression="SET sys.MessageId = newid() SET sys.SessionId = quantity")
        ),
        new_id=lambda: unique,
    ).action
    assert action is not None
    properties = message_of(action.apply(MESSAGE)).properties
    assert properties is not None
    assert (properties.message_id, properties.group_id) == (str(unique), "9")


def test_annotations_are_replaced_and_the_others_stay() -> None:
    changed = applied(
        "SET sys.PartitionKey = 'new'; SET sys.ScheduledEnqueueTimeUtc = @when; SET sys.ViaPartitionKey = 'via'",
        when=("dateTime", "2030-01-01T00:00:00Z"),
    )
    annotations = Message(render_unlocked(changed, 1)).message_annotations
    assert isinstance(annotations, dict)
    assert {
        key: annotation
        for key, annotation in annotations.items()
        if key not in ("x-opt-enqueued-time", "x-opt-sequence-number")
    } == {
        "mine": 1,
        "x-opt-partition-key": "new",
        "x-opt-via-partition-key": "via",
        "x-opt-scheduled-enqueue-time": Timestamp(1_893_456_000_000),
    }


def test_setting_the_time_to_live_changes_the_expiry() -> None:
    changed = applied("SET sys.TimeToLive = @short", short=("duration", "PT1M"))
    assert parse_record(changed).header.ttl_ms == 60_000
    assert due_time_of(changed) == ENQUEUED_MS + 60_000
    for_ever = applied("REMOVE sys.TimeToLive", changed)
    assert not parse_record(for_ever).header.flags & HAS_TTL
    assert due_time_of(for_ever) == 0
    longest = ("duration", "P10675199DT2H48M5.4775807S")
    assert due_time_of(applied("SET sys.TimeToLive = @longest", changed, longest=longest)) == 0


def test_setting_the_session_id_changes_the_session_of_the_record() -> None:
    record = stored(group_id="old", session=b"old")
    assert parse_record(applied("SET sys.SessionId = 'new'", record)).session_id == b"new"
    assert parse_record(applied("REMOVE sys.SessionId", record)).session_id is None
    assert parse_record(applied("SET sys.SessionId = 'new'", stored())).session_id is None


def test_unchanged_sections_and_properties_keep_their_bytes() -> None:
    odd = {"big": ULong(1), "small": UInt(0), "decimal": Decimal128.from_decimal(Decimal("1.50")), "took": span(5)}
    bare = build(
        properties=Properties(message_id=UUID(int=1), user_id=b"me", absolute_expiry_time=5, group_sequence=7),
        application_properties={**odd, "color": "red"},
        body=value({"deep": [1, 2]}),
        footer={"f": 1},
    )
    record = stored_bare(bare, annotations={"mine": span(1)}, ttl_ms=5)
    changed = applied("SET color = 'blue'; SET sys.To = 'there'", record)
    before, after = Message(bare), message_of(changed)
    for section in (Section.VALUE, Section.FOOTER):
        assert after.raw(section) == before.raw(section)
    kept, now = dict(before.pairs(Section.APPLICATION_PROPERTIES)), dict(after.pairs(Section.APPLICATION_PROPERTIES))
    assert {name: now[name] for name in odd} == {name: kept[name] for name in odd}
    assert after.properties == Properties(
        message_id=UUID(int=1), user_id=b"me", to="there", absolute_expiry_time=5, group_sequence=7
    )
    assert parse_record(changed).annotations == parse_record(record).annotations
    assert parse_record(changed).header == parse_record(record).header


@pytest.mark.parametrize(
    "bare",
    [
        build(body=data(b"only a body")),
        build(properties=Properties(message_id="m"), body=data(b"1", b"2")),
        build(properties=Properties(message_id="m"), application_properties={}),
        b"",
    ],
)
def test_any_message_can_be_changed(bare: bytes) -> None:
    changed = applied("SET sys.Label = 'x'; SET color = 1; REMOVE missing", stored_bare(bare))
    assert user_of(changed) == {"color": 1}
    assert message_of(changed).field(Section.PROPERTIES, 3) == "x"
    assert message_of(changed).raw(Section.DATA) == Message(bare).raw(Section.DATA)


def test_a_copied_property_keeps_its_type() -> None:
    record = stored({"d": Decimal128.from_decimal(Decimal("1.50")), "u": ULong(2**64 - 1), "t": span(5), "l": [1]})
    changed = user_of(applied("SET a = d; SET b = u; SET c = t; SET e = l; SET f = a; SET g = +u", record))
    assert [changed[name] for name in "abcefg"] == [
        Decimal128.from_decimal(Decimal("1.50")),
        ULong(2**64 - 1),
        span(5),
        [1],
        Decimal128.from_decimal(Decimal("1.50")),
        ULong(2**64 - 1),
    ]


def test_expressions_see_properties_set_before() -> None:
    changed = user_of(applied("SET a = 1; REMOVE color; SET b = a + 1; SET c = color"))
    assert (changed["b"], changed["c"]) == (2, None)


@pytest.mark.parametrize(
    "action",
    [
        "SET a = quantity / 0",
        "SET a = color - 1",
        "SET a = color; SET sys.TimeToLive = a",
        "SET sys.TimeToLive = sys.EnqueuedTimeUtc - @later",
        "SET sys.Label = exact",
        "SET sys.MessageId = missing",
        "SET sys.ContentType = umlaut",
        "SET sys.SessionId = long",
        "SET a = p(name)",
        "SET a = long + long; SET b = a + a; SET c = b + b",
        "SET a = " + "+".join(["long"] * 120) + " SET b = " + "+".join(["a"] * 5),
    ],
)
def test_an_invalid_action_fails(action: str) -> None:
    record = stored(
        {"color": "red", "quantity": 1, "exact": 1.5, "umlaut": "ü", "long": "x" * 8_000, "list": [1], "name": "list"}
    )
    with pytest.raises(FilterError):
        applied(action, record, later=("dateTime", "2099-01-01T00:00:00Z"))


def test_the_properties_stay_within_the_limits_of_the_namespace() -> None:
    action = sql("1 = 1", "SET a = 'aaaaaaaaaaaaaaaaaaaa'").action
    assert action is not None
    with pytest.raises(FilterError, match="bytes of properties and annotations; the limit is 40"):
        action.apply(stored(), NamespaceLimits(max_properties_bytes=40))
    with pytest.raises(FilterError, match="is larger than 10 bytes"):
        action.apply(stored(), NamespaceLimits(max_property_bytes=10))
