"""A browse link (distribution-mode copy) delivers every active message once, in order, and locks or consumes none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message as ProtonMessage
from proton import symbol, ulong
from proton.reactor import Copy, Filter

from tests.broker.harness import BrokerHarness
from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    accept_session,
    annotation_of,
    browse,
    defer,
    message_ids,
    order_ids,
    order_message,
    request_management,
    send,
    send_orders,
    sequence_numbers,
)
from tests.support.proton_client import TIMEOUT_S, connect_proton
from tests.support.proton_client import send as proton_send
from tests.support.raw_client import connect_raw
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, Modified, Rejected
from twinbus.amqp.types import Described, Int, Symbol, UByte, ULong
from twinbus.broker.fragment.message_browser import BrowseCursor

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError

ATTACH_PROPERTIES = {"twinbus:entity-id", "twinbus:low-sequence-number", "twinbus:next-sequence-number"}


def reply_properties(link: Receiver) -> dict[str, Any]:
    assert link.remote_attach is not None
    return {str(key): value for key, value in (link.remote_attach.properties or {}).items()}


# --- browsed messages -------------------------------------------------------------------------------------------------


def test_proton_browses_a_queue_twice_and_then_receives_all_of_it(server: ServerProcess, queue: str) -> None:
    with connect_proton(server) as connection:
        proton_send(connection, queue, *[ProtonMessage(body=f"order {number}") for number in range(5)])
        for name in ("first", "second"):
            browser = connection.create_receiver(queue, credit=10, name=name, options=Copy())
            browsed: list[Any] = [browser.receive(TIMEOUT_S) for _ in range(5)]
            assert [message.body for message in browsed] == [f"order {number}" for number in range(5)]
            assert [message.annotations["x-opt-sequence-number"] for message in browsed] == [1, 2, 3, 4, 5]
            assert server.message_counts(queue) == (5, 0)
        receiver = connection.create_receiver(queue, credit=10, name="third")
        assert [receiver.receive(TIMEOUT_S).body for _ in range(5)] == [f"order {number}" for number in range(5)]


def test_proton_browses_a_range(server: ServerProcess, queue: str) -> None:
    limits: Any = {
        symbol("twinbus:fragment"): ulong(0),
        symbol("twinbus:from-sequence-number"): ulong(2),
        symbol("twinbus:to-sequence-number"): ulong(3),
    }
    with connect_proton(server) as connection:
        proton_send(connection, queue, *[ProtonMessage(body=f"order {number}") for number in range(1, 6)])
        browser = connection.create_receiver(queue, credit=2, options=[Copy(), Filter(limits)])
        assert [browser.receive(TIMEOUT_S).body for _ in range(2)] == order_ids(2, 3)


async def test_a_browse_link_shows_locked_messages_and_leaves_them_locked(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        receiver = await client.attach_receiver(queue)
        held = await client.receive(receiver, 3)
        browser = await browse(client, queue)
        browsed = await client.drain(browser)
        assert message_ids(browsed) == order_ids(1, 2, 3, 4, 5)
        assert sequence_numbers(browsed) == [1, 2, 3, 4, 5]
        for delivery in held:
            assert await client.settle(receiver, delivery, ACCEPTED) is None
        assert message_ids(await client.receive(receiver, 2)) == order_ids(4, 5)


async def test_a_browse_link_shows_no_deferred_scheduled_or_settled_messages(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(
            client,
            queue,
            order_message(1),
            order_message(2),
            order_message(3),
            order_message(4, due_ms=FAR_FUTURE_MS),
            order_message(5),
            order_message(6),
        )
        receiver = await client.attach_receiver(queue)
        first, second, third = await client.receive(receiver, 3)
        await defer(client, receiver, first)
        assert await client.settle(receiver, second, ACCEPTED) is None
        assert await client.settle(receiver, third, Rejected()) is None
        browsed = await client.drain(await browse(client, queue))
        assert message_ids(browsed) == order_ids(5, 6)
        assert sequence_numbers(browsed) == [5, 6]


async def test_a_scheduled_message_is_browsed_when_it_is_due_behind_earlier_messages(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        browser = await browse(client, queue)
        browser.grant(10)
        await send(client, queue, order_message(1, due_ms=int(time.time() * 1000) + 800), order_message(2))
        await client.wait_until(lambda: len(client.received(browser)) == 2)
        browsed = client.received(browser)
        assert message_ids(browsed) == order_ids(2, 1)
        assert sequence_numbers(browsed) == [2, 3]


async def test_browsed_messages_are_settled_and_not_locked(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1))
        browser = await browse(client, queue)
        [delivery] = await client.receive(browser)
        assert delivery.settled
        assert annotation_of(delivery, "x-opt-locked-until") is None
        assert annotation_of(delivery, "x-opt-enqueued-time") > 0
        assert Message(delivery.payload).delivery_annotations == {}
        browser.settle([delivery], Rejected())
        receiver = await client.attach_receiver(queue)
        assert message_ids(await client.receive(receiver)) == order_ids(1)
        assert server.message_counts(queue) == (1, 0)


async def test_browsing_does_not_raise_the_delivery_count(server: ServerProcess) -> None:
    queue = server.create_queue(MaxDeliveryCount="2")
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1))
        for _ in range(5):
            assert message_ids(await client.drain(await browse(client, queue))) == order_ids(1)
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        header = Message(delivery.payload).header
        assert header is not None
        assert header.delivery_count == 0


async def test_an_abandoned_message_is_not_browsed_twice_and_a_new_link_shows_its_count(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1))
        browser = await browse(client, queue)
        assert message_ids(await client.receive(browser)) == order_ids(1)
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        assert await client.settle(receiver, delivery, Modified(delivery_failed=True)) is None
        assert await client.drain(browser) == []
        [browsed_later] = await client.receive(await browse(client, queue))
        header = Message(browsed_later.payload).header
        assert header is not None
        assert header.delivery_count == 1


async def test_a_browse_link_delivers_new_messages_as_they_are_sent(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        await send_orders(other, queue, [1, 2])
        browser = await browse(client, queue)
        browser.grant(100)
        await client.wait_until(lambda: len(client.received(browser)) == 2)
        for number in range(3, 8):
            await send_orders(other, queue, [number])
            await client.wait_until(lambda: len(client.received(browser)) == number)  # noqa: B023  # called at once
        assert message_ids(client.received(browser)) == order_ids(*range(1, 8))


async def test_two_browse_links_show_the_same_while_a_receiver_empties_the_queue(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        browsers = [await browse(client, queue), await browse(client, queue)]
        for browser in browsers:
            browser.grant(1_000)
        await send_orders(other, queue, range(1, 101))
        await client.wait_until(lambda: all(len(client.received(browser)) == 100 for browser in browsers))
        receiver = await other.attach_receiver(queue, settled=True)
        assert len(await other.receive_all(receiver, 100)) == 100
        for browser in browsers:
            assert message_ids(client.received(browser)) == order_ids(*range(1, 101))
        assert server.message_counts(queue) == (0, 0)


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, range(1, 8)),
        ({"from_sequence_number": 0}, range(1, 8)),
        ({"from_sequence_number": 3}, range(3, 8)),
        ({"to_sequence_number": 3}, range(1, 4)),
        ({"from_sequence_number": 3, "to_sequence_number": 5}, range(3, 6)),
        ({"from_sequence_number": 3, "to_sequence_number": 3}, range(3, 4)),
        ({"from_sequence_number": 5, "to_sequence_number": 3}, range(0)),
        ({"to_sequence_number": 0}, range(0)),
        ({"from_sequence_number": 8}, range(0)),
        ({"from_sequence_number": 2**63 - 1}, range(0)),
        ({"from_sequence_number": ULong(2**64 - 1)}, range(0)),
        ({"to_sequence_number": ULong(2**64 - 1)}, range(1, 8)),
        ({"fragment": 0}, range(1, 8)),
        ({"fragment": UByte(0), "from_sequence_number": Int(6), "to_sequence_number": ULong(9)}, range(6, 8)),
        ({"from_sequence_number": Described(Symbol("twinbus:from-sequence-number"), 6)}, range(6, 8)),
    ],
    ids=str,
)
async def test_a_range_includes_both_of_its_ends(
    server: ServerProcess, queue: str, filters: dict[str, object], expected: range
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 8))
        browser = await browse(client, queue, **filters)
        assert message_ids(await client.drain(browser)) == order_ids(*expected)


async def test_a_range_of_future_messages_is_delivered_up_to_its_end(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        browser = await browse(client, queue, from_sequence_number=3, to_sequence_number=4)
        browser.grant(100)
        await send_orders(client, queue, range(1, 8))
        await client.wait_until(lambda: len(client.received(browser)) == 2)
        assert await client.drain(browser) == []
        assert message_ids(client.received(browser)) == order_ids(3, 4)


async def test_the_attach_reply_has_the_lowest_and_the_next_sequence_number(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        empty = reply_properties(await browse(client, queue))
        assert set(empty) == ATTACH_PROPERTIES
        assert empty["twinbus:low-sequence-number"] == empty["twinbus:next-sequence-number"] == 1
        await send_orders(client, queue, range(1, 6))
        filled = reply_properties(await browse(client, queue))
        assert (filled["twinbus:low-sequence-number"], filled["twinbus:next-sequence-number"]) == (1, 6)
        receiver = await client.attach_receiver(queue, settled=True)
        assert message_ids(await client.receive(receiver, 3)) == order_ids(1, 2, 3)
        browser = await browse(client, queue)
        later = reply_properties(browser)
        assert later["twinbus:next-sequence-number"] == 6
        assert 1 <= later["twinbus:low-sequence-number"] <= 4
        assert sequence_numbers(await client.drain(browser)) == [4, 5]
        assert empty["twinbus:entity-id"] == filled["twinbus:entity-id"] == later["twinbus:entity-id"]
        reply = (await request_management(client, queue, "twinbus:fragments")).body
        assert reply["entity-id"] == filled["twinbus:entity-id"]
        other = reply_properties(await browse(client, server.create_queue()))
        assert other["twinbus:entity-id"] != filled["twinbus:entity-id"]


# --- credit -----------------------------------------------------------------------------------------------------------


async def test_a_browse_link_respects_its_credit_and_continues_where_it_stopped(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 11))
        browser = await browse(client, queue)
        await request_management(client, queue, "twinbus:fragments")
        assert client.received(browser) == []
        assert message_ids(await client.receive(browser, 1)) == order_ids(1)
        assert message_ids(await client.receive(browser, 3)) == order_ids(2, 3, 4)
        await request_management(
            client, queue, "twinbus:fragments"
        )  # deliveries sent before this response have arrived
        assert message_ids(client.received(browser)) == order_ids(1, 2, 3, 4)
        assert message_ids(await client.drain(browser, 2)) == order_ids(5, 6)
        assert message_ids(await client.drain(browser)) == order_ids(7, 8, 9, 10)


class LinkWithChangingCredit:
    """A link whose credit changes while messages are read for it."""

    def __init__(self) -> None:
        self.credit = 0
        self.seen: list[bytes] = []

    @property
    def wants_messages(self) -> bool:
        return self.credit > 0

    @property
    def available_credit(self) -> int:
        return self.credit

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        count = min(len(deliveries), self.credit)
        self.credit -= count
        self.seen += [Message(payload).data[0] for payload, _ in deliveries[:count]]
        return count

    def force_detach(self, error: ServiceBusError) -> None:
        raise AssertionError(error)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_credit_withdrawn_during_a_read_loses_no_message(left: int) -> None:
    harness, link = BrokerHarness(), LinkWithChangingCredit()
    harness.send_stored(b"1", b"2", b"3")
    browser = BrowseCursor(harness.main_fragment, link, 0, 2**63 - 1)
    link.credit = 10
    browser.advance()
    link.credit = left
    harness.run_until_idle()
    assert link.seen == [b"1", b"2", b"3"][:left]
    link.credit = 10
    browser.advance()
    harness.run_until_idle()
    assert link.seen == [b"1", b"2", b"3"]


async def test_a_drain_uses_up_the_credit_and_later_credit_continues(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        browser = await browse(client, queue)
        assert await client.drain(browser) == []
        assert browser.credit == 0
        await send_orders(client, queue, [1, 2])
        assert client.received(browser) == []
        assert message_ids(await client.drain(browser)) == order_ids(1, 2)
        await send_orders(client, queue, [3])
        assert message_ids(await client.receive(browser)) == order_ids(3)


async def test_a_drain_delivers_the_whole_log_however_large_it_is(server: ServerProcess, queue: str) -> None:
    """The log is larger than one read from the store and larger than the socket's send buffer."""
    count = 600
    payloads = [build(properties=Properties(message_id=f"order {n}"), body=data(bytes(8_000))) for n in range(count)]
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for payload in payloads[:-1]:
            link.send(payload)
        assert await client.send(link, payloads[-1]) is None
        browser = await browse(client, queue)
        assert message_ids(await client.drain(browser, 10_000)) == order_ids(*range(count))


# --- dead letters, sessions, receivers --------------------------------------------------------------------------------


async def test_a_dead_letter_queue_is_browsed_like_a_queue(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 5))
        receiver = await client.attach_receiver(queue)
        for delivery in await client.receive(receiver, 3):
            assert await client.settle(receiver, delivery, Rejected()) is None
        dead = f"{queue}/$DeadLetterQueue"
        browser = await browse(client, dead, from_sequence_number=2)
        reply = reply_properties(browser)
        assert (reply["twinbus:low-sequence-number"], reply["twinbus:next-sequence-number"]) == (1, 4)
        assert message_ids(await client.drain(browser)) == order_ids(2, 3)
        browser.grant(10)
        [last] = await client.receive(receiver, 1)
        assert await client.settle(receiver, last, Rejected()) is None
        await client.wait_until(lambda: len(client.received(browser)) == 3)
        assert message_ids(client.received(browser)) == order_ids(2, 3, 4)
        assert server.message_counts(queue) == (0, 4)


async def test_a_queue_with_sessions_is_browsed_across_all_sessions(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        payloads = [order_message(number, session=session) for number, session in enumerate("abcab", 1)]
        await send(client, queue, *payloads)
        holder = await accept_session(client, queue, "a")
        assert message_ids(await client.receive(holder, 2)) == order_ids(1, 4)
        browser = await browse(client, queue)
        browsed = await client.drain(browser)
        assert message_ids(browsed) == order_ids(1, 2, 3, 4, 5)
        sessions = [message.properties and message.properties.group_id for message in map(_decode, browsed)]
        assert sessions == list("abcab")
        another = await accept_session(client, queue, "b")
        assert message_ids(await client.receive(another, 2)) == order_ids(2, 5)


def _decode(delivery: Any) -> Message:  # noqa: ANN401
    return Message(delivery.payload)


async def test_browse_links_do_not_keep_receivers_from_consuming(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        browsers: list[Receiver] = [await browse(client, queue) for _ in range(20)]
        await send_orders(client, queue, range(1, 4))
        receiver = await client.attach_receiver(queue, settled=True)
        assert message_ids(await client.receive(receiver, 3)) == order_ids(1, 2, 3)
        assert server.message_counts(queue) == (0, 0)
        await _assert_nothing_browsed(client, browsers)


async def _assert_nothing_browsed(client: RawClient, browsers: list[Receiver]) -> None:
    for browser in browsers:
        assert await client.drain(browser) == []
