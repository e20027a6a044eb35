"""A performative has a limit on its elements of its own, and little of it is kept for as long as its link is."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.encode import encode
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, UNAUTHORIZED_ACCESS, DecodeError
from twinbus.amqp.events import AttachRequested, ConnectionOpened, LinkDetached
from twinbus.amqp.frames import AMQP_HEADER, frame
from twinbus.amqp.message import Message, build, data
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Error, Open
from twinbus.amqp.settings import Limits
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Described, Symbol, ULong

MOST = Limits().max_performative_items
HEADS = {"open": 10, "begin": 8, "attach": 14}
"""Fields of each, its properties the last."""


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


@pytest.mark.parametrize("kind", HEADS)
def test_a_performative_has_a_thousand_elements_at_the_most(kind: str) -> None:
    def send(lists: int) -> SingleEngine:
        lone = SingleEngine()
        lone.feed_bytes(AMQP_HEADER)
        properties = with_lists(lists)
        opening = Open(container_id="c", properties=properties if kind == "open" else None)
        windows = {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}
        begin = Begin(**windows, properties=properties if kind == "begin" else None)  # type: ignore[arg-type]
        lone.send(opening, begin, attach(properties=properties if kind == "attach" else None))
        return lone

    others = (
        HEADS[kind] + 2 + (7 if kind == "attach" else 0)
    )  # the fields, a key and its value; the target's own fields
    assert send(MOST - others).end.events_of(AttachRequested)
    refused = send(MOST - others + 1)
    assert refused.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    assert not refused.end.events_of(AttachRequested)


def test_descriptions_within_a_performative_are_counted_too() -> None:
    tree: object = 1
    for _ in range(10):  # 1,023 of them, in 2 KB, and no element
        tree = Described(tree, tree)
    lone = SingleEngine().begun()
    lone.send(attach(properties={"x": tree}))
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_a_message_may_have_more_elements_than_a_performative() -> None:
    payload = build(application_properties={f"key {number}": number for number in range(MOST)}, body=data(b"x"))
    properties = Message(payload).application_properties
    assert isinstance(properties, dict)
    assert len(properties) == MOST
    with pytest.raises(DecodeError):
        _ = Message(payload, Limits(max_items=MOST)).application_properties


def test_a_server_keeps_no_properties_of_its_peers_open() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="c" * 10_000, hostname="h" * 10_000, channel_max=7, properties={"product": "x"}))
    assert lone.end.only_event(ConnectionOpened).open.properties == {"product": "x"}
    kept = lone.connection.remote_open
    assert kept is not None
    assert kept.channel_max == 7
    assert len(kept.encode()) < 500


def test_of_an_accepted_link_only_the_addresses_are_kept() -> None:
    lone = SingleEngine().begun()
    source = Source(address="here", filter={Symbol("x"): Described(ULong(1), "y" * 10_000)})
    lone.send(attach(source=source, properties={"x": "y" * 10_000}))
    (event,) = lone.end.events_of(AttachRequested)
    assert event.attach.properties == {"x": "y" * 10_000}
    event.link.accept()
    kept = event.link.remote_attach
    assert kept is not None
    assert isinstance(kept.source, Source)
    assert kept.source.address == "here"
    assert len(kept.encode()) < 500


def test_of_a_refused_link_nothing_is_kept_but_its_handle() -> None:
    lone = SingleEngine().begun()
    lone.send(attach(properties={"x": "y" * 10_000}))
    (event,) = lone.end.events_of(AttachRequested)
    event.link.refuse(Error(condition=UNAUTHORIZED_ACCESS))
    lone.collect()
    (session,) = lone.connection.sessions.values()
    assert event.link.remote_attach is None
    assert session.links == {}
    assert lone.connection.link_count == 1
    lone.send(Detach(handle=0, closed=True))
    assert lone.connection.link_count == 0
    assert len(lone.end.events_of(LinkDetached)) == 1


def test_the_name_of_a_refused_link_is_free_before_the_peer_has_detached_it() -> None:
    lone = SingleEngine().begun()
    for handle in range(2):
        lone.send(Attach(name="same", handle=handle, role=Role.SENDER, initial_delivery_count=0, target=Target()))
        if handle == 0:
            lone.end.events_of(AttachRequested)[0].link.refuse(Error(condition=UNAUTHORIZED_ACCESS))
    lone.end.events_of(AttachRequested)[1].link.accept()
    lone.send(Detach(handle=0, closed=True))
    assert lone.end.events_of(AttachRequested)[1].link.is_attached


def test_a_link_can_be_taken_over_before_it_was_answered() -> None:
    lone = SingleEngine().begun()
    for handle in range(2):
        lone.send(Attach(name="same", handle=handle, role=Role.SENDER, initial_delivery_count=0, target=Target()))
    first, second = [event.link for event in lone.end.events_of(AttachRequested)]
    assert [event.link for event in lone.end.events_of(LinkDetached)] == [first]
    first.accept()  # it is over: nothing is sent for it
    second.accept()
    assert second.is_attached


def test_a_link_cannot_have_a_name_of_any_length() -> None:
    most = Limits().max_name_bytes
    lone = SingleEngine().begun()
    lone.send(Attach(name="x" * most, handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target()))
    assert len(lone.end.events_of(AttachRequested)) == 1
    lone.send(Attach(name="x" * (most + 1), handle=1, role=Role.SENDER, initial_delivery_count=0, target=Target()))
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_a_frame_of_sixty_thousand_empty_lists_is_refused_before_they_are_made() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lists = encode([[]] * 60_000)
    body = b"\xa1\x01c" + b"\x40" * 8 + b"\xd1" + (len(lists) + 7).to_bytes(4) + b"\0\0\0\x02\xa3\x01x" + lists
    lone.feed_bytes(frame(0, b"\x00\x53\x10\xd0" + (len(body) + 4).to_bytes(4) + b"\0\0\0\x0a" + body))
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    assert lone.connection.remote_open is None
