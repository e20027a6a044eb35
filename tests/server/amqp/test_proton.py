"""qpid-proton logs in with SASL PLAIN, sends, receives, and settles messages in every way."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from proton import (
    ConnectionException,
    Delivery,
    Message,
    Timeout,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.reactor import AtLeastOnce, AtMostOnce
from proton.utils import LinkDetached, SendException

from tests.support.proton_client import TIMEOUT_S, connect_proton, send, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.server_process import ServerProcess

PROPERTIES: dict[str, Any] = {
    "text": "Zürich 🚂",
    "long": 2**62,
    "negative": -(2**62),
    "ulong": ulong(2**63 + 1),
    "uint": uint(2**31 + 1),
    "int": int32(-7),
    "ushort": ushort(65_535),
    "short": short(-7),
    "ubyte": ubyte(255),
    "byte": byte(-7),
    "yes": True,
    "nothing": None,
    "float": float32(2.5),
    "double": 2.5,
    "char": char("ü"),
    "time": timestamp(1_763_254_923_456),
    "uuid": uuid.UUID(int=2**100 + 7),
    "binary": b"\x00\xff",
    "symbol": symbol("a-symbol"),
    "decimal32": decimal32(7),
    "decimal64": decimal64(7),
    "decimal128": decimal128(bytes(range(16))),
}


def types_of(values: Iterable[Any]) -> list[type]:
    """Return the types of the values; proton decodes binary as a memoryview."""
    return [bytes if isinstance(value, memoryview) else type(value) for value in values]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_message_is_sent_received_and_accepted(server: ServerProcess, queue: str, *, tls: bool) -> None:
    with connect_proton(server, tls=tls) as connection:
        send(connection, queue, Message(body="an order", id="7", subject="s"))
        assert server.message_counts(queue) == (1, 0)
        receiver = connection.create_receiver(queue, credit=1)
        message = receiver.receive(TIMEOUT_S)
        assert (message.body, message.id, message.subject, message.delivery_count) == ("an order", "7", "s", 0)
        receiver.accept()
        wait_for(connection, lambda: server.message_counts(queue) == (0, 0))


def test_properties_of_every_type_keep_their_types(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, Message(body=PROPERTIES["uuid"], properties=PROPERTIES))
        message: Any = connection.create_receiver(queue, credit=1).receive(TIMEOUT_S)
    assert message.body == PROPERTIES["uuid"]
    assert message.properties == PROPERTIES
    assert types_of(message.properties.values()) == types_of(PROPERTIES.values())


BODIES: list[Any] = [{"key": [1, 2.5, None]}, ["a", {"b": symbol("c")}], b"", "", None, 7, "x" * 5_000]
IDS: list[Any] = ["text", uuid.UUID(int=7), ulong(7), b"bytes"]


def test_bodies_of_any_value_and_ids_of_any_type_are_delivered_unchanged(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, *[Message(body=body) for body in BODIES])
        send(connection, queue, *[Message(id=identity, correlation_id=identity) for identity in IDS])
        receiver = connection.create_receiver(queue, credit=20)
        messages = [receiver.receive(TIMEOUT_S) for _ in BODIES]
        with_ids = [receiver.receive(TIMEOUT_S) for _ in IDS]
    bodies = [message.body for message in messages]
    assert bodies == BODIES
    assert types_of(bodies) == types_of(BODIES)
    assert [(message.id, message.correlation_id) for message in with_ids] == [(identity, identity) for identity in IDS]


def test_a_message_without_an_id_is_given_one(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, Message(body="x", subject="kept", properties={"a": 1}))
        message = connection.create_receiver(queue, credit=1).receive(TIMEOUT_S)
    assert isinstance(message.id, str)
    assert len(message.id) == 32
    assert (message.body, message.subject) == ("x", "kept")
    assert message.properties == {"a": 1}


def test_a_modified_message_raises_the_delivery_count_and_a_released_one_does_not(
    server: ServerProcess, queue: str
) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, Message(body="x"))
        receiver = connection.create_receiver(queue, credit=1)
        assert receiver.receive(TIMEOUT_S).delivery_count == 0
        receiver.release(delivered=False)
        receiver.flow(1)
        assert receiver.receive(TIMEOUT_S).delivery_count == 0
        receiver.release(delivered=True)
        receiver.flow(1)
        assert receiver.receive(TIMEOUT_S).delivery_count == 1
        receiver.accept()
        wait_for(connection, lambda: server.message_counts(queue) == (0, 0))


def test_a_rejected_message_is_dead_lettered(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, Message(body="broken", properties={"a": 1}))
        receiver = connection.create_receiver(queue, credit=1)
        receiver.receive(TIMEOUT_S)
        receiver.reject()
        wait_for(connection, lambda: server.message_counts(queue) == (0, 1))
        dead_letters = connection.create_receiver(f"{queue}/$DeadLetterQueue", credit=1)
        assert dead_letters.receive(TIMEOUT_S).body == "broken"
        dead_letters.accept()
        wait_for(connection, lambda: server.message_counts(queue) == (0, 0))


def test_a_drain_delivers_the_existing_messages_and_uses_up_the_remaining_credit(
    server: ServerProcess, queue: str
) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, *[Message(body=f"order {number}") for number in range(3)])
        receiver = connection.create_receiver(queue, credit=0)
        fetcher: Any = receiver.fetcher
        receiver.link.drain(10)
        wait_for(connection, lambda: fetcher.has_message == 3 and not receiver.link.draining())
        assert receiver.link.credit == 0
        assert [fetcher.pop().body for _ in range(3)] == ["order 0", "order 1", "order 2"]


def test_a_drain_of_an_empty_queue_is_answered(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        receiver = connection.create_receiver(queue, credit=0)
        receiver.link.drain(10)
        wait_for(connection, lambda: not receiver.link.draining())
        assert receiver.link.credit == 0
        with pytest.raises(Timeout):
            receiver.receive(0.1)


def test_messages_sent_settled_are_stored(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        for number in range(10):
            sender.send(Message(body=f"order {number}"))
        wait_for(connection, lambda: server.message_counts(queue) == (10, 0))


def test_a_receiver_in_settled_mode_receives_and_deletes(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, *[Message(body=f"order {number}") for number in range(3)])
        receiver = connection.create_receiver(queue, credit=10, options=AtMostOnce())
        assert [receiver.receive(TIMEOUT_S).body for _ in range(3)] == ["order 0", "order 1", "order 2"]
        assert server.message_counts(queue) == (0, 0)


def test_an_unsettled_message_stays_when_the_connection_ends(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        send(connection, queue, Message(body="x"))
        connection.create_receiver(queue, credit=1, options=AtLeastOnce()).receive(TIMEOUT_S)
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("frame_size", [512, 4_096, 65_536])
def test_large_messages_are_sent_and_received_in_many_frames(
    server: ServerProcess, queue: str, frame_size: int
) -> None:
    body = bytes(range(256)) * 1_000
    with connect_proton(server, max_frame_size=frame_size) as connection:
        send(connection, queue, Message(body=body), Message(body=body[::-1]))
        receiver = connection.create_receiver(queue, credit=2)
        messages: list[Any] = [
            receiver.receive(TIMEOUT_S) for _ in range(2)
        ]  # a body is a view into its message's memory
        assert [bytes(message.body) for message in messages] == [body, body[::-1]]


def test_a_message_that_is_too_large_is_rejected_and_the_link_still_works(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        sender = connection.create_sender(queue)
        assert sender.link.remote_max_message_size == 262_144
        with pytest.raises(SendException) as caught:
            sender.send(Message(body=b"x" * 300_000))
        assert caught.value.state == Delivery.REJECTED
        sender.send(Message(body=b"x"), timeout=TIMEOUT_S)
    assert server.message_counts(queue) == (1, 0)


def test_a_thousand_messages_are_received_in_order(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        for number in range(1_000):
            sender.send(Message(body=number))
        receiver = connection.create_receiver(queue, credit=100)
        received = []
        for _ in range(1_000):
            received.append(receiver.receive(TIMEOUT_S).body)
            receiver.accept()
            receiver.flow(1)
        assert received == list(range(1_000))
        wait_for(connection, lambda: server.message_counts(queue) == (0, 0))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "credentials", [{"password": "c2VjcmV0"}, {"user": "Nobody"}, {"user": "x" * 3_000}], ids=["key", "name", "long"]
)
def test_a_wrong_key_is_refused(server: ServerProcess, credentials: dict[str, Any], *, tls: bool) -> None:
    with (
        pytest.raises(ConnectionException, match="amqp:unauthorized-access"),
        connect_proton(server, tls=tls, **credentials),
    ):
        pass
    with connect_proton(server):
        pass


def test_an_anonymous_client_without_a_token_gets_no_link(server: ServerProcess, queue: str) -> None:
    with connect_proton(server, user=None, password=None, allowed_mechs="ANONYMOUS") as connection:
        for attach in (connection.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached) as caught:
                attach(queue)
            assert caught.value.condition == "amqp:unauthorized-access"


def test_attaching_to_an_unknown_entity_is_refused_and_the_connection_still_works(
    server: ServerProcess, queue: str
) -> None:
    with connect_proton(server) as connection:
        for attach in (connection.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached) as caught:
                attach("nowhere")
            assert caught.value.condition == "amqp:not-found"
        send(connection, queue, Message(body="x"))
    assert server.message_counts(queue) == (1, 0)
