"""Performative limits: the number of elements, and how much of an open or attach the server retains."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Error, Open
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, UNAUTHORIZED_ACCESS, DecodeError
from twinbus.amqp.events import AttachRequested, ConnectionOpened, LinkDetached
from twinbus.amqp.message import Message, build, data
from twinbus.amqp.settings import Limits
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Described, Symbol, ULong

MAX_ITEMS = Limits().max_performative_items
FIELD_COUNTS = {"open": 10, "begin": 8, "attach": 14}
"""Number of fields of each performative; the last field is its properties."""


def with_lists(count: int) -> dict[str, object]:
    return {"x": [[] for _ in range(count)]}


def attach(properties: dict[str, object] | None = None, source: Source | None = None) -> Attach:
    return Attach(
        name="link",
        handle=0,
        role=Role.SENDER,
        initial_delivery_count=0,
        source=source,
        target=Target(),
        unsettled={b"tag": None} if source is not None else None,
        properties=properties,
    )


@pytest.mark.parametrize("kind", FIELD_COUNTS)
def test_a_performative_beyond_the_element_limit_closes_the_connection(kind: str) -> None:
    def send(lists: int) -> SingleEngine:
        engine = SingleEngine()
        engine.feed_bytes(AMQP_HEADER)
        properties = with_lists(lists)
        opening = Open(container_id="c", properties=properties if kind == "open" else None)
        windows = {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}
        begin = Begin(**windows, properties=properties if kind == "begin" else None)  # type: ignore[arg-type]
        engine.send(opening, begin, attach(properties=properties if kind == "attach" else None))
        return engine

    others = (
        FIELD_COUNTS[kind] + 2 + (7 if kind == "attach" else 0)
    )  # the fields, one key and its value, and the fields of the target
    assert send(MAX_ITEMS - others).end.events_of(AttachRequested)
    refused = send(MAX_ITEMS - others + 1)
    assert refused.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    assert not refused.end.events_of(AttachRequested)


def test_described_values_within_a_performative_count_towards_the_limit() -> None:
    tree: object = 1
    for _ in range(10):  # 1,023 described values in 2 KB, and no list elements
        tree = Described(tree, tree)
    engine = SingleEngine().begun()
    engine.send(attach(properties={"x": tree}))
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_a_message_may_have_more_elements_than_a_performative() -> None:
    payload = build(application_properties={f"key {number}": number for number in range(MAX_ITEMS)}, body=data(b"x"))
    properties = Message(payload).application_properties
    assert isinstance(properties, dict)
    assert len(properties) == MAX_ITEMS
    with pytest.raises(DecodeError):
        _ = Message(payload, Limits(max_items=MAX_ITEMS)).application_properties


def test_a_server_does_not_retain_the_properties_of_an_open() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="c" * 10_000, hostname="h" * 10_000, channel_max=7, properties={"product": "x"}))
    assert engine.end.only_event(ConnectionOpened).open.properties == {"product": "x"}
    kept = engine.connection.remote_open
    assert kept is not None
    assert kept.channel_max == 7
    assert len(kept.encode()) < 500


def test_an_accepted_link_retains_only_its_addresses() -> None:
    engine = SingleEngine().begun()
    source = Source(address="here", filter={Symbol("x"): Described(ULong(1), "y" * 10_000)})
    engine.send(attach(source=source, properties={"x": "y" * 10_000}))
    (event,) = engine.end.events_of(AttachRequested)
    assert event.attach.properties == {"x": "y" * 10_000}
    event.link.accept()
    kept = event.link.remote_attach
    assert kept is not None
    assert isinstance(kept.source, Source)
    assert kept.source.address == "here"
    assert len(kept.encode()) < 500


def test_a_refused_link_retains_only_its_handle() -> None:
    engine = SingleEngine().begun()
    engine.send(attach(properties={"x": "y" * 10_000}))
    (event,) = engine.end.events_of(AttachRequested)
    event.link.refuse(Error(condition=UNAUTHORIZED_ACCESS))
    engine.collect()
    (session,) = engine.connection.sessions.values()
    assert event.link.remote_attach is None
    assert session.links == {}
    assert engine.connection.link_count == 1
    engine.send(Detach(handle=0, closed=True))
    assert engine.connection.link_count == 0
    assert len(engine.end.events_of(LinkDetached)) == 1


def test_the_name_of_a_refused_link_can_be_reused_before_the_peer_detaches() -> None:
    engine = SingleEngine().begun()
    for handle in range(2):
        engine.send(Attach(name="same", handle=handle, role=Role.SENDER, initial_delivery_count=0, target=Target()))
        if handle == 0:
            engine.end.events_of(AttachRequested)[0].link.refuse(Error(condition=UNAUTHORIZED_ACCESS))
    engine.end.events_of(AttachRequested)[1].link.accept()
    engine.send(Detach(handle=0, closed=True))
    assert engine.end.events_of(AttachRequested)[1].link.is_attached


def test_a_link_can_be_stolen_before_it_is_answered() -> None:
    engine = SingleEngine().begun()
    for handle in range(2):
        engine.send(Attach(name="same", handle=handle, role=Role.SENDER, initial_delivery_count=0, target=Target()))
    first, second = [event.link for event in engine.end.events_of(AttachRequested)]
    assert [event.link for event in engine.end.events_of(LinkDetached)] == [first]
    first.accept()  # the first link is stolen: nothing is sent for it
    second.accept()
    assert second.is_attached


def test_a_link_name_beyond_the_limit_closes_the_connection() -> None:
    max_name_bytes = Limits().max_name_bytes
    engine = SingleEngine().begun()
    engine.send(
        Attach(name="x" * max_name_bytes, handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target())
    )
    assert len(engine.end.events_of(AttachRequested)) == 1
    engine.send(
        Attach(name="x" * (max_name_bytes + 1), handle=1, role=Role.SENDER, initial_delivery_count=0, target=Target())
    )
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_an_open_with_sixty_thousand_empty_lists_is_refused() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    lists = encode([[]] * 60_000)
    body = b"\xa1\x01c" + b"\x40" * 8 + b"\xd1" + (len(lists) + 7).to_bytes(4) + b"\0\0\0\x02\xa3\x01x" + lists
    engine.feed_bytes(frame(0, b"\x00\x53\x10\xd0" + (len(body) + 4).to_bytes(4) + b"\0\0\0\x0a" + body))
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    assert engine.connection.remote_open is None
