"""A ping is accepted like a message, but it is neither stored, counted nor delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from proton import Message as ProtonMessage
from proton import symbol
from proton.reactor import AtMostOnce, Copy

from tests.broker.harness import BrokerHarness
from tests.support.entity_operations import (
    accept_session,
    browse,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send_orders,
    set_status,
)
from tests.support.in_process_server import run_server_in_process
from tests.support.proton_client import connect_proton, send, wait_for
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.message import Header, Properties, build, data, sequence, value
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.types import Timestamp
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.queue import QueueDescription
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from proton.utils import BlockingConnection

    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

PING = "application/vnd.ms-servicebus-ping"
OTHER_SPELLINGS = [
    PING.upper(),
    PING.title(),
    f"{PING} ",
    f" {PING}",
    f"{PING};charset=utf-8",
    PING[:-1],
    f"{PING}s",
    PING.replace("vnd.ms-", "vnd."),
    "",
]
EMPTY_BODIES = {
    "no body": b"",
    "an empty data section": data(b""),
    "an empty data section, written long": b"\x00\x53\x75\xb0\x00\x00\x00\x00",
    "an empty data section, its descriptor written long": b"\x00\x80" + bytes(7) + b"\x75\xa0\x00",
    "several empty data sections": data(b"", b"", b""),
    "a null value": value(None),
    "an empty string": value(""),
    "empty binary": value(b""),
}
BODIES = {
    "data": data(b"x"),
    "a byte that is zero": data(b"\x00"),
    "an empty data section and one that is not": data(b"", b"x"),
    "text": value("x"),
    "a number": value(0),
    "false": value(False),  # noqa: FBT003  # a value of AMQP
    "a sequence": sequence([1]),
}


def ping(
    body: bytes = b"",
    *,
    content_type: str = PING,
    message_id: str | None = "ping",
    session: str | None = None,
    ttl_ms: int | None = 1_000,
) -> bytes:
    """Return a ping as clients send it by default (R058 to R060)."""
    header = Header(ttl=ttl_ms) if ttl_ms is not None else None
    properties = Properties(message_id=message_id, content_type=content_type, group_id=session)
    return build(header=header, properties=properties, body=body)


def short_ping(body: bytes) -> bytes:
    """Return a ping as clients encode it that omit trailing properties and set no time to live."""
    fields = b"\xa1\x04ping" + b"\x40" * 5 + bytes((0xA3, len(PING))) + PING.encode()
    return bytes((0x00, 0x53, 0x73, 0xC0, len(fields) + 1, 7)) + fields + body


async def send_each(client: RawClient, queue: str, *payloads: bytes, message_format: int = 0) -> None:
    link = await client.attach_sender(queue)
    for payload in payloads:
        assert await client.send(link, payload, message_format=message_format) is None
    await client.detach(link)


async def consume_all(client: RawClient, queue: str) -> list[str]:
    """Browse, peek, receive and complete all messages of a queue; return their ids, which must agree."""
    browsed = message_ids(await client.drain(await browse(client, queue)))
    assert message_ids(await peek(client, queue)) == browsed
    link = await client.attach_receiver(queue)
    received = await client.receive_all(link, len(browsed))
    assert message_ids(received) == browsed
    for delivery in received:
        assert await client.settle(link, delivery, ACCEPTED) is None
    await client.detach(link)
    return browsed


# --- receivers --------------------------------------------------------------------------------------------------------


def drained(connection: BlockingConnection, queue: str, count: int, options: Any) -> list[Any]:  # noqa: ANN401
    """Return the bodies of all messages that a proton link gets: at least `count`."""
    receiver = connection.create_receiver(queue, credit=100, options=options)
    fetcher: Any = receiver.fetcher
    wait_for(connection, lambda: fetcher.has_message >= count)
    receiver.link.drain(0)
    wait_for(connection, lambda: not receiver.link.draining() and not receiver.link.queued)
    return [fetcher.pop().body for _ in range(fetcher.has_message)]


@pytest.mark.parametrize("mode", ["peek-lock", "receive-and-delete", "browse"])
def test_r061_no_proton_receiver_gets_a_ping(server: ServerProcess, queue: str, mode: str) -> None:
    options: dict[str, Any] = {"peek-lock": None, "receive-and-delete": AtMostOnce(), "browse": Copy()}
    with connect_proton(server) as connection:
        for number in range(3):
            send(connection, queue, ProtonMessage(content_type=symbol(PING), ttl=1, id=f"ping {number}", inferred=True))
            send(connection, queue, ProtonMessage(body=f"order {number}"))
        send(connection, queue, ProtonMessage(content_type=symbol(PING)))
        assert server.message_counts(queue) == (3, 0)
        assert drained(connection, queue, 3, options[mode]) == ["order 0", "order 1", "order 2"]


async def test_r061_waiting_receivers_do_not_get_a_ping(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        receiver = await client.attach_receiver(queue)
        browser = await browse(client, queue)
        receiver.grant(10)
        browser.grant(10)
        await send_each(other, queue, ping(), order_message(1), ping(), order_message(2))
        await client.wait_until(lambda: len(client.received(receiver)) == 2 and len(client.received(browser)) == 2)
        assert message_ids(client.received(receiver)) == order_ids(1, 2)
        assert message_ids(client.received(browser)) == order_ids(1, 2)


async def test_r061_a_ping_is_not_received_peeked_or_browsed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(), order_message(1), ping(), ping(), order_message(2), ping())
        assert server.message_counts(queue) == (2, 0)
        assert await consume_all(client, queue) == order_ids(1, 2)
        assert server.message_counts(queue) == (0, 0)


async def test_r061_a_ping_takes_no_sequence_number(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        before = await request_management(client, queue, "twinbus:fragments")
        await send_each(client, queue, *[ping()] * 5)
        after = await request_management(client, queue, "twinbus:fragments")
        assert before == after
        assert after.body["fragments"][0]["message-count"] == 0


# --- recognition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", EMPTY_BODIES.values(), ids=EMPTY_BODIES)
async def test_r058_every_encoding_of_an_empty_body_makes_a_ping(
    server: ServerProcess, queue: str, body: bytes
) -> None:
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(body), ping(body, ttl_ms=None), ping(body, message_id=None))
        await send_each(client, queue, short_ping(body))
        assert server.message_counts(queue) == (0, 0)
        assert await peek(client, queue) == []


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_r058_a_ping_with_a_body_is_an_ordinary_message(server: ServerProcess, queue: str, body: bytes) -> None:
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(body, message_id="order 1", ttl_ms=None))
        await send_each(client, queue, ping(body, message_id="order 2", ttl_ms=60_000))
        assert server.message_counts(queue) == (2, 0)
        assert await consume_all(client, queue) == order_ids(1, 2)


@pytest.mark.parametrize("content_type", OTHER_SPELLINGS)
async def test_r059_a_ping_with_another_content_type_is_an_ordinary_message(
    server: ServerProcess, queue: str, content_type: str
) -> None:
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(content_type=content_type, message_id="order 1", ttl_ms=None))
        await send_each(client, queue, ping(data(b""), content_type=content_type, message_id="order 2", ttl_ms=None))
        assert server.message_counts(queue) == (2, 0)
        assert await consume_all(client, queue) == order_ids(1, 2)


async def test_r058_properties_annotations_and_a_footer_do_not_count_as_a_body(
    server: ServerProcess, queue: str
) -> None:
    """Tracing adds properties to every message that a client sends."""
    properties = Properties(message_id="ping", content_type=PING, subject="s", correlation_id="c", to="there")
    annotations, others = {"x-opt-partition-key": "k"}, {"Diagnostic-Id": "00-1-2-01"}
    async with connect_raw(server) as client:
        for body in EMPTY_BODIES.values():
            await send_each(
                client,
                queue,
                build(properties=properties, application_properties=others, body=body),
                build(properties=properties, message_annotations=annotations, body=body),
                build(properties=properties, body=body, footer={"checksum": 7}),
                short_ping(body + build(footer={"checksum": 7})),
            )
        assert server.message_counts(queue) == (0, 0)
        assert await peek(client, queue) == []


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_r061_pings_in_a_batch_are_dropped_and_its_messages_are_not(server: ServerProcess, queue: str) -> None:
    mixed = data(ping(), order_message(1), ping(data(b"")), order_message(2), ping(value(None)))
    async with connect_raw(server) as client:
        await send_each(client, queue, mixed, message_format=BATCH_FORMAT)
        assert await consume_all(client, queue) == order_ids(1, 2)
        await send_each(client, queue, data(ping(), ping()), message_format=BATCH_FORMAT)
        assert server.message_counts(queue) == (0, 0)


async def test_r061_a_batch_with_a_ping_envelope_is_stored(server: ServerProcess, queue: str) -> None:
    envelope = build(
        properties=Properties(message_id="order 1", content_type=PING), body=data(order_message(1), order_message(2))
    )
    async with connect_raw(server) as client:
        await send_each(client, queue, envelope, message_format=BATCH_FORMAT)
        assert await consume_all(client, queue) == order_ids(1, 2)


async def test_r061_a_batch_of_pings_and_a_malformed_message_is_rejected(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        batch = data(ping(), b"garbage", ping())
        assert await client.send(link, batch, message_format=BATCH_FORMAT) == "amqp:decode-error"
        assert await client.send(link, ping()) is None


# --- other features ---------------------------------------------------------------------------------------------------


async def test_r061_duplicate_detection_ignores_pings(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(message_id="order 1"), ping(message_id="order 1"))
        await send_each(client, queue, order_message(1), ping(message_id="order 1"), order_message(1), order_message(2))
        batch = data(ping(message_id="order 3"), order_message(3), ping(message_id="order 3"), order_message(3))
        await send_each(client, queue, batch, message_format=BATCH_FORMAT)
        assert await consume_all(client, queue) == order_ids(1, 2, 3)


async def test_r061_a_ping_needs_no_session_and_creates_none(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(), ping(session="a"), ping(session="pinged"))
        listed = await request_management(client, queue, "com.microsoft:get-message-sessions")
        assert listed.status == 204
        await send_orders(client, queue, [1, 2], session="a")
        await send_each(client, queue, ping(session="a"))
        link = await accept_session(client, queue, None)
        received = await client.receive_all(link, 2)
        assert message_ids(received) == order_ids(1, 2)
        assert message_ids(await peek(client, queue)) == order_ids(1, 2)
        assert server.message_counts(queue) == (2, 0)
        await client.detach(link)
        receiver = await accept_session(client, queue, "a", settled=True)
        assert message_ids(await client.receive_all(receiver, 2)) == order_ids(1, 2)
        pinged = await accept_session(client, queue, "pinged")
        assert await client.drain(pinged) == []


async def test_r061_an_expired_ping_is_not_dead_lettered(server: ServerProcess) -> None:
    """A message with the same time to live, sent after the ping, has expired: so has the ping."""
    queue = server.create_queue(DeadLetteringOnMessageExpiration="true")
    message = build(header=Header(ttl=50), properties=Properties(message_id="order 1"), body=data(b"x"))
    async with connect_raw(server) as client:
        await send_each(client, queue, ping(ttl_ms=50), message)
        dead = await client.attach_receiver(f"{queue}/$DeadLetterQueue")
        [delivery] = await client.receive(dead)
        assert message_ids([delivery]) == order_ids(1)
        assert await client.drain(dead) == []
        assert server.message_counts(queue) == (0, 1)


# --- permission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
async def test_r061_a_queue_disabled_for_sending_refuses_pings(server: ServerProcess, queue: str, status: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, ping()) is None
        set_status(server, queue, status)
        assert await client.detach_condition(link) == "com.microsoft:entity-disabled"
        with pytest.raises(LinkRefused, match=r"com\.microsoft:entity-disabled"):
            await client.attach_sender(queue)
        set_status(server, queue, "ReceiveDisabled")
        assert await client.send(await client.attach_sender(queue), ping()) is None


async def test_r061_a_ping_needs_only_the_send_right(tmp_path: Path) -> None:
    keys = [Key("root", "c2VjcmV0")]
    keys += [Key(right.value, "c2VjcmV0", rights=frozenset({right})) for right in (Right.SEND, Right.LISTEN)]
    with run_server_in_process(tmp_path, keys=keys) as server:
        queue = server.create_queue()
        async with connect_raw(server, Credentials.plain(Right.SEND.value, "c2VjcmV0")) as client:
            await send_each(client, queue, ping())
        async with connect_raw(server, Credentials.plain(Right.LISTEN.value, "c2VjcmV0")) as client:
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_sender(queue)
        assert server.message_counts(queue) == (0, 0)


async def test_r061_a_ping_cannot_be_scheduled(server: ServerProcess, queue: str) -> None:
    """A schedule request returns a sequence number for each message, and a ping has none."""
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(4_000_000_000_000)}
    scheduled_ping = build(message_annotations=annotations, properties=Properties(message_id="p", content_type=PING))
    arguments = {"messages": [{"message": scheduled_ping}, {"message": order_message(1, due_ms=4_000_000_000_000)}]}
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, "com.microsoft:schedule-message", arguments)
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "ping" in answer.text
        assert await peek(client, queue) == []


# --- when a ping is accepted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "with sessions and duplicate detection"])
def test_q13_a_ping_is_accepted_only_after_its_store_has_synced(*, is_plain: bool) -> None:
    description = QueueDescription(requires_session=not is_plain, requires_duplicate_detection=not is_plain)
    harness = BrokerHarness(description)
    harness.run_until_idle()
    outcomes = harness.send_messages(ping())
    assert outcomes == []
    harness.run_until_commit()
    assert harness.store.pending_commits, "the store got no commit to sync"
    assert outcomes == []
    harness.run_until_idle()
    assert outcomes == [None]
    assert harness.main_fragment.active_count == 0


def test_q13_a_ping_is_refused_if_its_store_cannot_sync() -> None:
    harness = BrokerHarness()
    harness.run_until_idle()
    harness.fail_next_sync()
    outcomes = harness.send_messages(ping())
    harness.run_until_idle()
    [error] = outcomes
    assert error is not None
    assert error.status == 503
