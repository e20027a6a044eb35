"""The rewriting of messages: parking replaces some fields by properties, and restoring reverses it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.message import Header, Message, Properties, Section, build, data, sequence, value
from twinbus.amqp.types import Byte, Described, Float, Int, Symbol, Timestamp, UInt, ULong
from twinbus.client.pairing.backlog import rewriting
from twinbus.client.pairing.backlog.rewriting import ExpiredMessage, RestoredMessage
from twinbus.client.pairing.errors import MessageCannotBeParked, ParkedMessageMalformed, ReservedPropertyName
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage, encode_batch

NOW_MS: Final = 1_700_000_000_000
LATER_MS: Final = NOW_MS + 90_000
MINUTE_MS: Final = 60_000
MINUTE: Final = dt.timedelta(minutes=1)


def parked(message: BrokeredMessage | bytes, *, possible_duplicate: bool = False) -> Message:
    payload = message if isinstance(message, bytes) else message.encode(NOW_MS)
    return Message(rewriting.park(payload, 0, "orders", is_possible_duplicate=possible_duplicate))


def in_backlog(message: Message, enqueued_ms: int = NOW_MS, *, deliveries: int = 0) -> bytes:
    """A parked message as a backlog queue delivers it at LATER_MS."""
    annotations = dict(message.message_annotations) | {
        "x-opt-enqueued-time": Timestamp(enqueued_ms),
        "x-opt-sequence-number": 17,
        "x-opt-locked-until": Timestamp(LATER_MS + MINUTE_MS),
    }
    return build(
        header=Header(delivery_count=deliveries),
        delivery_annotations={"x-opt-lock-token": uuid.uuid4()},
        message_annotations={str(name): item for name, item in annotations.items()},
        body=message.bare(),
    )


def restored(message: Message, *, deduct: bool = False, deliveries: int = 0) -> BrokeredMessage:
    result = rewriting.restore(in_backlog(message, deliveries=deliveries), LATER_MS, deduct_parked_time=deduct)
    assert isinstance(result, RestoredMessage)
    return BrokeredMessage.decode(result.payload)


def with_property(name: str, item: object) -> bytes:
    """A parked message with another value of one alias."""
    properties = {"x-ms-path": "orders", name: item}
    return build(properties=Properties(message_id="1"), application_properties=properties, body=data(b"x"))


def test_r050_the_session_id_is_cleared_and_kept_as_a_property() -> None:
    message = parked(BrokeredMessage("x", session_id="basket 7"))
    assert message.properties is not None
    assert message.properties.group_id is None
    assert message.lookup(Section.APPLICATION_PROPERTIES, "x-ms-sessionid") == "basket 7"


def test_r051_the_time_to_live_is_cleared_and_kept_as_a_property() -> None:
    message = parked(BrokeredMessage("x", time_to_live=dt.timedelta(minutes=1)))
    assert message.header is not None
    assert message.header.ttl is None
    assert message.properties is not None
    assert message.properties.absolute_expiry_time is None
    kept = message.lookup(Section.APPLICATION_PROPERTIES, "x-ms-timetolive")
    assert kept == Described(Symbol("com.microsoft:timespan"), MINUTE_MS * 10_000)


def test_r052_q05_the_schedule_is_cleared_and_kept_as_a_property() -> None:
    when = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    message = parked(BrokeredMessage("x", scheduled_enqueue_time_utc=when))
    assert message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-scheduled-enqueue-time") is None
    kept = message.lookup(Section.APPLICATION_PROPERTIES, "x-ms-scheduledenqueuetimeutc")
    assert type(kept) is Timestamp
    assert kept == when.timestamp() * 1000


def test_r053_the_destination_is_kept_as_a_property() -> None:
    assert parked(BrokeredMessage("x")).lookup(Section.APPLICATION_PROPERTIES, "x-ms-path") == "orders"


def test_q06_only_fields_that_were_set_are_kept() -> None:
    properties = dict(parked(BrokeredMessage("x", message_id="7")).application_properties)
    assert properties == {"x-ms-path": "orders"}


def test_q06_an_infinite_time_to_live_is_not_kept() -> None:
    properties = dict(parked(BrokeredMessage("x", time_to_live=dt.timedelta.max)).application_properties)
    assert "x-ms-timetolive" not in properties


def test_q06_ids_keys_and_properties_are_untouched() -> None:
    own = {"a": 1, "b": "two", "c": 3.5, "d": True}
    sent = BrokeredMessage(
        b"body",
        message_id="id",
        partition_key="key",
        correlation_id="to you",
        label="about",
        to="there",
        properties=own,
    )
    message = restored(parked(sent))
    for name in ("message_id", "partition_key", "correlation_id", "label", "to", "body"):
        assert getattr(message, name) == getattr(sent, name), name
    assert {name: message.properties[name] for name in own} == own


def test_r056_the_aliases_are_restored_to_their_fields() -> None:
    when = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    sent = BrokeredMessage("x", session_id="7", time_to_live=dt.timedelta(hours=2), scheduled_enqueue_time_utc=when)
    message = restored(parked(sent))
    assert message.session_id == "7"
    assert message.time_to_live == dt.timedelta(hours=2)
    assert message.scheduled_enqueue_time_utc == when
    assert not rewriting.ALIASES & message.properties.keys()


def test_q06_a_time_to_live_beyond_49_days_is_restored_in_full() -> None:
    message = restored(parked(BrokeredMessage("x", time_to_live=dt.timedelta(days=200))))
    assert message.time_to_live == dt.timedelta(days=200)


def test_q06_a_time_to_live_in_plain_milliseconds_is_read() -> None:
    result = rewriting.restore(with_property("x-ms-timetolive", 5_000), NOW_MS)
    assert isinstance(result, RestoredMessage)
    assert BrokeredMessage.decode(result.payload).time_to_live == dt.timedelta(seconds=5)


def test_q04_a_message_that_may_have_arrived_carries_the_mark_to_its_destination() -> None:
    assert restored(parked(BrokeredMessage("x"), possible_duplicate=True)).properties["x-ms-possible-duplicate"] is True
    assert "x-ms-possible-duplicate" not in restored(parked(BrokeredMessage("x"))).properties


@pytest.mark.parametrize("is_parked_with_mark", [False, True])
def test_q17_a_message_that_was_delivered_before_is_marked_once(*, is_parked_with_mark: bool) -> None:
    message = parked(BrokeredMessage("x", properties={"colour": "red"}), possible_duplicate=is_parked_with_mark)
    received = restored(message, deliveries=3)
    assert received.properties["x-ms-possible-duplicate"] is True
    assert received.properties["colour"] == "red"
    pairs = Message(received.encode(NOW_MS)).pairs(Section.APPLICATION_PROPERTIES)
    assert [key for key, _ in pairs].count("x-ms-possible-duplicate") == 1
    header = Message(received.encode(NOW_MS)).header
    assert header is None or not header.delivery_count


def test_q04_a_message_or_a_batch_is_marked_once_and_nothing_else_of_it_changes() -> None:
    first = BrokeredMessage("x", session_id="7", properties={"colour": "red"}, time_to_live=MINUTE).encode(NOW_MS)
    marked = BrokeredMessage.decode(rewriting.mark_possible_duplicate(first))
    assert (marked.text, marked.session_id, marked.time_to_live) == ("x", "7", MINUTE)
    assert marked.properties == {"colour": "red", "x-ms-possible-duplicate": True}
    assert rewriting.mark_possible_duplicate(
        rewriting.mark_possible_duplicate(first)
    ) == rewriting.mark_possible_duplicate(first)
    batch = rewriting.mark_possible_duplicate(encode_batch([first, first], BrokeredMessage("x")), BATCH_FORMAT)
    assert Message(batch).data == [rewriting.mark_possible_duplicate(first)] * 2


def test_q09_the_message_says_when_and_for_how_long_it_was_parked() -> None:
    properties = restored(parked(BrokeredMessage("x"))).properties
    assert properties["x-ms-parked-at"] == dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
    assert properties["x-ms-parked-for"] == dt.timedelta(milliseconds=LATER_MS - NOW_MS)
    assert properties["x-ms-parked-for-ms"] == LATER_MS - NOW_MS


def test_q09_deduct_parked_time_shortens_the_time_to_live() -> None:
    message = restored(parked(BrokeredMessage("x", time_to_live=dt.timedelta(minutes=2))), deduct=True)
    assert message.time_to_live == dt.timedelta(seconds=30)


def test_q09_deduct_parked_time_reports_messages_that_expired_while_parked() -> None:
    message = in_backlog(parked(BrokeredMessage("x", time_to_live=dt.timedelta(minutes=1))))
    result = rewriting.restore(message, LATER_MS, deduct_parked_time=True)
    assert result == ExpiredMessage("orders", 90_000, 60_000)
    assert result.description == "it was parked for 90 s; its time to live was 60 s"


def test_a_message_parked_twice_reports_only_the_last_parking() -> None:
    first = rewriting.restore(
        in_backlog(parked(BrokeredMessage("x", message_id="1"), possible_duplicate=True)), LATER_MS
    )
    assert isinstance(first, RestoredMessage)
    properties = restored(parked(first.payload)).properties
    assert sorted(properties) == [
        "x-ms-parked-at",
        "x-ms-parked-for",
        "x-ms-parked-for-ms",
        "x-ms-possible-duplicate",
    ]


def test_q04_parking_keeps_an_existing_mark() -> None:
    """The mark may be the application's own, or belong to a received message that is sent again."""
    own = BrokeredMessage("x", properties={"x-ms-possible-duplicate": True, "price": 3})
    for possible_duplicate in (False, True):
        message = restored(parked(own, possible_duplicate=possible_duplicate))
        assert (message.properties["x-ms-possible-duplicate"], message.properties["price"]) == (True, 3)


@pytest.mark.parametrize("own", [{}, {"price": 3}, {"x-ms-possible-duplicate": False, "price": 3}])
def test_q04_a_mark_is_added_and_nothing_else_changes(own: dict[str, object]) -> None:
    message = BrokeredMessage(
        {"fruit": ["apples"]}, message_id="1", session_id="7", time_to_live=dt.timedelta(days=60), properties=own
    )
    message.scheduled_enqueue_time_utc = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    payload = build(delivery_annotations={"hop": 1}) + message.encode(NOW_MS) + build(footer={"sum": 7})
    before, after = Message(payload), Message(rewriting.mark_possible_duplicate(payload))
    assert dict(after.application_properties) == own | {"x-ms-possible-duplicate": True}
    untouched = set(Section) - {Section.APPLICATION_PROPERTIES}
    assert {section: after.raw(section) for section in untouched} == {
        section: before.raw(section) for section in untouched
    }
    assert rewriting.mark_possible_duplicate(after.payload) is after.payload


def test_q04_each_message_of_a_batch_is_marked() -> None:
    messages = [BrokeredMessage(str(number), message_id=str(number), partition_key="7") for number in range(3)]
    messages[1].properties["x-ms-possible-duplicate"] = True
    batch = encode_batch([message.encode(NOW_MS) for message in messages], messages[0])
    marked = rewriting.mark_possible_duplicate(batch, BATCH_FORMAT)
    decoded = [BrokeredMessage.decode(item) for item in Message(marked).data]
    assert [(item.text, item.properties["x-ms-possible-duplicate"]) for item in decoded] == [
        (str(number), True) for number in range(3)
    ]
    assert marked.startswith(batch[: batch.index(Message(batch).data[0]) - 5]), "the envelope is unchanged"
    assert rewriting.mark_possible_duplicate(marked, BATCH_FORMAT) is marked


@pytest.mark.parametrize(
    ("name", "item", "reason"),
    [
        ("x-ms-path", None, "it has no property x-ms-path: its destination is unknown"),
        ("x-ms-path", 7, "its property x-ms-path is 7, not the path of an entity"),
        ("x-ms-path", "/", "its property x-ms-path is '/', not the path of an entity"),
        ("x-ms-path", Timestamp(NOW_MS), f"its property x-ms-path is Timestamp({NOW_MS}), not the path of an entity"),
        ("x-ms-sessionid", 7, "its property x-ms-sessionid is 7, not a string"),
        ("x-ms-timetolive", "a minute", "its property x-ms-timetolive is 'a minute', not a duration"),
        ("x-ms-timetolive", -5, "its property x-ms-timetolive is -5, not a duration"),
        ("x-ms-scheduledenqueuetimeutc", "now", "its property x-ms-scheduledenqueuetimeutc is 'now', not a time"),
    ],
)
def test_q05_q19_an_alias_of_the_wrong_type_is_malformed(name: str, item: object, reason: str) -> None:
    with pytest.raises(ParkedMessageMalformed) as error:
        rewriting.restore(with_property(name, item), NOW_MS)
    assert str(error.value) == reason


def test_q07_a_property_with_the_name_of_an_alias_is_refused() -> None:
    for name in rewriting.ALIASES:
        with pytest.raises(ReservedPropertyName, match=f"'{name}'"):
            rewriting.check_property_names({"a": 1, name: "mine"})
    rewriting.check_property_names({"a": 1, "x-ms-other": 2})


def test_q08_the_error_says_by_how_much_a_message_is_too_large() -> None:
    with pytest.raises(
        MessageCannotBeParked, match=r"have 1,\d\d\d bytes when parked, [1-9]\d* more than a backlog queue accepts"
    ):
        rewriting.check_parked_size(parked(BrokeredMessage(b"x" * 1000)).payload, 1_000)


def test_q08_parking_adds_less_than_two_kilobytes() -> None:
    widest = "\N{GRINNING FACE}"
    payload = BrokeredMessage(
        "x",
        session_id=widest * 128,
        time_to_live=dt.timedelta(days=200),
        scheduled_enqueue_time_utc=dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
    ).encode(NOW_MS)
    grown = rewriting.park(payload, 0, widest * 260, is_possible_duplicate=True)
    assert len(grown) - len(payload) < 2_048


def test_q08_properties_have_a_limit_of_their_own() -> None:
    large_properties = {f"p{number}": "x" * 30_000 for number in range(2)} | {"p2": "x" * 5_420}
    payload = BrokeredMessage("x", properties=large_properties).encode(NOW_MS)
    assert rewriting.properties_size(payload) <= rewriting.MAX_PROPERTIES_BYTES
    message = BrokeredMessage("x", session_id="s" * 100, properties=large_properties)
    with pytest.raises(
        MessageCannotBeParked, match=r"bytes of properties when parked, \d+ more than the limit \(65,536\)"
    ):
        rewriting.check_parked_size(parked(message).payload, 262_144)


def test_q22_a_batch_is_parked_whole() -> None:
    batch = [BrokeredMessage(str(number), session_id="7") for number in range(3)]
    payload = encode_batch([message.encode(NOW_MS) for message in batch], batch[0])
    envelope = Message(rewriting.park(payload, BATCH_FORMAT, "orders", is_possible_duplicate=False))
    inner = [Message(item) for item in envelope.data]
    assert [item.lookup(Section.APPLICATION_PROPERTIES, "x-ms-sessionid") for item in inner] == ["7"] * 3
    assert [item.data for item in inner] == [[b"0"], [b"1"], [b"2"]]
    assert envelope.properties is not None
    assert envelope.properties.group_id is None


# --- round trips of any message ---------------------------------------------------------------------------------------

_TEXTS: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_VALUES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    _TEXTS,
    st.binary(max_size=20),
    st.uuids(),
    st.integers(0, 2**40).map(Timestamp),
)
_BODIES: Final = st.one_of(
    st.lists(st.binary(max_size=30), min_size=1, max_size=3).map(lambda parts: data(*parts)),
    st.lists(_VALUES, max_size=3).map(sequence),
    _VALUES.map(value),
    st.just(b""),
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Messages as any client could send them."""
    maybe: Any = lambda strategy: draw(st.one_of(st.none(), strategy))  # noqa: E731
    names = _TEXTS.filter(lambda name: not name.startswith("x-ms-"))
    ttl = maybe(st.integers(1, 2**32 - 2))
    return build(
        header=maybe(st.builds(Header, durable=st.booleans(), priority=st.integers(0, 9), ttl=st.just(ttl))),
        message_annotations=maybe(st.dictionaries(st.sampled_from(["x-opt-partition-key", "mine"]), _TEXTS)),
        properties=Properties(
            message_id=draw(st.one_of(_TEXTS, st.uuids(), st.binary(max_size=9), st.integers(0, 9).map(ULong))),
            user_id=maybe(st.binary(max_size=9)),
            subject=maybe(_TEXTS),
            correlation_id=maybe(_TEXTS),
            group_id=maybe(_TEXTS),
            group_sequence=maybe(st.integers(0, 9)),
            reply_to_group_id=maybe(_TEXTS),
        ),
        application_properties=maybe(st.dictionaries(names, _VALUES, max_size=4)),
        body=draw(_BODIES),
        footer=maybe(st.dictionaries(st.sampled_from(["f"]), _TEXTS)),
    )


@given(payloads())
def test_any_message_comes_back_as_it_was_sent(payload: bytes) -> None:
    sent = Message(payload)
    result = rewriting.restore(in_backlog(parked(payload)), LATER_MS)
    assert isinstance(result, RestoredMessage)
    back = Message(result.payload)
    assert back.bare().endswith(_sections_after_properties(sent))
    sent_properties, back_properties = sent.properties, back.properties
    assert sent_properties is not None
    assert back_properties is not None
    for name in ("message_id", "user_id", "subject", "correlation_id", "group_id", "group_sequence"):
        assert getattr(back_properties, name) == getattr(sent_properties, name), name
    own = {key: raw for key, raw in back.pairs(Section.APPLICATION_PROPERTIES) if not str(key).startswith("x-ms-")}
    assert own == dict(sent.pairs(Section.APPLICATION_PROPERTIES))
    assert dict(back.pairs(Section.MESSAGE_ANNOTATIONS)) == dict(sent.pairs(Section.MESSAGE_ANNOTATIONS))
    assert (back.header.ttl if back.header else None) == (sent.header.ttl if sent.header else None)


def _sections_after_properties(message: Message) -> bytes:
    body = message.body_section
    return (message.raw(body) if body is not None else b"") + message.raw(Section.FOOTER)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_reported_as_malformed(payload: bytes) -> None:
    try:
        rewriting.restore(payload, NOW_MS)
    except ParkedMessageMalformed:
        return
    raise AssertionError("bytes without a path were taken for a parked message")
