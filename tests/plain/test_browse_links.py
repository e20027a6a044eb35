"""A browse link (distribution-mode copy) shows every active message once, in order, and takes nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message as ProtonMessage
from proton import symbol, ulong
from proton.reactor import Copy, Filter

from tests.broker.rig import Rig
from tests.plain.entity import (
    FAR_MS,
    accept_session,
    annotation,
    browse,
    defer,
    manage,
    names,
    order,
    orders,
    send,
    send_orders,
    sequence_numbers,
)
from tests.plain.proton_client import PATIENCE_S, proton
from tests.plain.proton_client import send as proton_send
from tests.plain.raw import raw
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, Modified, Rejected
from twinbus.amqp.types import Described, Int, Symbol, UByte, ULong
from twinbus.broker.browser import Browser

if TYPE_CHECKING:
    from tests.plain.raw import Raw
    from tests.served import Served
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError

REPLY = {"twinbus:entity-id", "twinbus:low-sequence-number", "twinbus:next-sequence-number"}


def reply_properties(link: Receiver) -> dict[str, Any]:
    assert link.remote_attach is not None
    return {str(key): value for key, value in (link.remote_attach.properties or {}).items()}


# --- what it sees -----------------------------------------------------------------------------------------------------


def test_proton_browses_a_queue_twice_and_receives_all_of_it_then(server: Served, queue: str) -> None:
    with proton(server) as connection:
        proton_send(connection, queue, *[ProtonMessage(body=f"order {number}") for number in range(5)])
        for name in ("first", "second"):
            browser = connection.create_receiver(queue, credit=10, name=name, options=Copy())
            found: list[Any] = [browser.receive(PATIENCE_S) for _ in range(5)]
            assert [message.body for message in found] == [f"order {number}" for number in range(5)]
            assert [message.annotations["x-opt-sequence-number"] for message in found] == [1, 2, 3, 4, 5]
            assert server.counts(queue) == (5, 0)
        receiver = connection.create_receiver(queue, credit=10, name="third")
        assert [receiver.receive(PATIENCE_S).body for _ in range(5)] == [f"order {number}" for number in range(5)]


def test_proton_browses_a_range(server: Served, queue: str) -> None:
    limits: Any = {
        symbol("twinbus:fragment"): ulong(0),
        symbol("twinbus:from-sequence-number"): ulong(2),
        symbol("twinbus:to-sequence-number"): ulong(3),
    }
    with proton(server) as connection:
        proton_send(connection, queue, *[ProtonMessage(body=f"order {number}") for number in range(1, 6)])
        browser = connection.create_receiver(queue, credit=2, options=[Copy(), Filter(limits)])
        assert [browser.receive(PATIENCE_S).body for _ in range(2)] == orders(2, 3)


async def test_it_sees_what_others_have_and_takes_it_from_nobody(server: Served, queue: str) -> None:
    async with raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        receiver = await client.attach_receiver(queue)
        held = await client.receive(receiver, 3)
        browser = await browse(client, queue)
        found = await client.drain(browser)
        assert names(found) == orders(1, 2, 3, 4, 5)
        assert sequence_numbers(found) == [1, 2, 3, 4, 5]
        for delivery in held:
            assert await client.settle(receiver, delivery, ACCEPTED) is None
        assert names(await client.receive(receiver, 2)) == orders(4, 5)


async def test_it_does_not_see_deferred_or_scheduled_messages_or_those_that_are_gone(
    server: Served, queue: str
) -> None:
    async with raw(server) as client:
        await send(client, queue, order(1), order(2), order(3), order(4, due_ms=FAR_MS), order(5), order(6))
        receiver = await client.attach_receiver(queue)
        first, second, third = await client.receive(receiver, 3)
        await defer(client, receiver, first)
        assert await client.settle(receiver, second, ACCEPTED) is None
        assert await client.settle(receiver, third, Rejected()) is None
        found = await client.drain(await browse(client, queue))
        assert names(found) == orders(5, 6)
        assert sequence_numbers(found) == [5, 6]


async def test_a_scheduled_message_is_seen_when_it_is_due_behind_what_was_there(server: Served, queue: str) -> None:
    async with raw(server) as client:
        browser = await browse(client, queue)
        browser.grant(10)
        await send(client, queue, order(1, due_ms=int(time.time() * 1000) + 800), order(2))
        await client.until(lambda: len(client.received(browser)) == 2)
        found = client.received(browser)
        assert names(found) == orders(2, 1)
        assert sequence_numbers(found) == [2, 3]


async def test_what_it_shows_is_settled_and_not_locked(server: Served, queue: str) -> None:
    async with raw(server) as client:
        await send(client, queue, order(1))
        browser = await browse(client, queue)
        [delivery] = await client.receive(browser)
        assert delivery.settled
        assert annotation(delivery, "x-opt-locked-until") is None
        assert annotation(delivery, "x-opt-enqueued-time") > 0
        assert Message(delivery.payload).delivery_annotations == {}
        browser.settle([delivery], Rejected())
        receiver = await client.attach_receiver(queue)
        assert names(await client.receive(receiver)) == orders(1)
        assert server.counts(queue) == (1, 0)


async def test_it_does_not_count_as_a_delivery(server: Served) -> None:
    queue = server.make_queue(MaxDeliveryCount="2")
    async with raw(server) as client:
        await send(client, queue, order(1))
        for _ in range(5):
            assert names(await client.drain(await browse(client, queue))) == orders(1)
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        header = Message(delivery.payload).header
        assert header is not None
        assert header.delivery_count == 0


async def test_an_abandoned_message_is_not_seen_again_and_a_new_browser_sees_its_count(
    server: Served, queue: str
) -> None:
    async with raw(server) as client:
        await send(client, queue, order(1))
        browser = await browse(client, queue)
        assert names(await client.receive(browser)) == orders(1)
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        assert await client.settle(receiver, delivery, Modified(delivery_failed=True)) is None
        assert await client.drain(browser) == []
        [again] = await client.receive(await browse(client, queue))
        header = Message(again.payload).header
        assert header is not None
        assert header.delivery_count == 1


async def test_it_follows_what_is_sent(server: Served, queue: str) -> None:
    async with raw(server) as client, raw(server) as other:
        await send_orders(other, queue, [1, 2])
        browser = await browse(client, queue)
        browser.grant(100)
        await client.until(lambda: len(client.received(browser)) == 2)
        for number in range(3, 8):
            await send_orders(other, queue, [number])
            await client.until(lambda: len(client.received(browser)) == number)  # noqa: B023  # called at once
        assert names(client.received(browser)) == orders(*range(1, 8))


async def test_two_browsers_see_the_same_while_a_receiver_empties_the_queue(server: Served, queue: str) -> None:
    async with raw(server) as client, raw(server) as other:
        browsers = [await browse(client, queue), await browse(client, queue)]
        for browser in browsers:
            browser.grant(1_000)
        await send_orders(other, queue, range(1, 101))
        await client.until(lambda: all(len(client.received(browser)) == 100 for browser in browsers))
        taken = await other.attach_receiver(queue, settled=True)
        assert len(await other.receive_all(taken, 100)) == 100
        for browser in browsers:
            assert names(client.received(browser)) == orders(*range(1, 101))
        assert server.counts(queue) == (0, 0)


# --- from where to where ----------------------------------------------------------------------------------------------


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
async def test_a_range_is_seen_with_both_its_ends(
    server: Served, queue: str, filters: dict[str, object], expected: range
) -> None:
    async with raw(server) as client:
        await send_orders(client, queue, range(1, 8))
        browser = await browse(client, queue, **filters)
        assert names(await client.drain(browser)) == orders(*expected)


async def test_a_range_that_is_not_there_yet_is_waited_for_and_ends_where_it_ends(server: Served, queue: str) -> None:
    async with raw(server) as client:
        browser = await browse(client, queue, from_sequence_number=3, to_sequence_number=4)
        browser.grant(100)
        await send_orders(client, queue, range(1, 8))
        await client.until(lambda: len(client.received(browser)) == 2)
        assert await client.drain(browser) == []
        assert names(client.received(browser)) == orders(3, 4)


async def test_the_answer_to_its_attach_says_from_where_to_where_there_is_something(server: Served, queue: str) -> None:
    async with raw(server) as client:
        empty = reply_properties(await browse(client, queue))
        assert set(empty) == REPLY
        assert empty["twinbus:low-sequence-number"] == empty["twinbus:next-sequence-number"] == 1
        await send_orders(client, queue, range(1, 6))
        full = reply_properties(await browse(client, queue))
        assert (full["twinbus:low-sequence-number"], full["twinbus:next-sequence-number"]) == (1, 6)
        taken = await client.attach_receiver(queue, settled=True)
        assert names(await client.receive(taken, 3)) == orders(1, 2, 3)
        browser = await browse(client, queue)
        later = reply_properties(browser)
        assert later["twinbus:next-sequence-number"] == 6
        assert 1 <= later["twinbus:low-sequence-number"] <= 4
        assert sequence_numbers(await client.drain(browser)) == [4, 5]
        assert empty["twinbus:entity-id"] == full["twinbus:entity-id"] == later["twinbus:entity-id"]
        told = (await manage(client, queue, "twinbus:fragments")).body
        assert told["entity-id"] == full["twinbus:entity-id"]
        other = reply_properties(await browse(client, server.make_queue()))
        assert other["twinbus:entity-id"] != full["twinbus:entity-id"]


# --- credit -----------------------------------------------------------------------------------------------------------


async def test_it_sends_no_more_than_it_has_credit_for_and_goes_on_where_it_was(server: Served, queue: str) -> None:
    async with raw(server) as client:
        await send_orders(client, queue, range(1, 11))
        browser = await browse(client, queue)
        await manage(client, queue, "twinbus:fragments")
        assert client.received(browser) == []
        assert names(await client.receive(browser, 1)) == orders(1)
        assert names(await client.receive(browser, 3)) == orders(2, 3, 4)
        await manage(client, queue, "twinbus:fragments")  # what was sent before this answer has come
        assert names(client.received(browser)) == orders(1, 2, 3, 4)
        assert names(await client.drain(browser, 2)) == orders(5, 6)
        assert names(await client.drain(browser)) == orders(7, 8, 9, 10)


class Reluctant:
    """A link whose credit changes while messages are read for it."""

    def __init__(self) -> None:
        self.credit = 0
        self.seen: list[bytes] = []

    @property
    def is_hungry(self) -> bool:
        return self.credit > 0

    @property
    def room(self) -> int:
        return self.credit

    def show(self, deliveries: list[Delivery]) -> int:
        count = min(len(deliveries), self.credit)
        self.credit -= count
        self.seen += [Message(payload).data[0] for payload, _ in deliveries[:count]]
        return count

    def entity_gone(self, error: ServiceBusError) -> None:
        raise AssertionError(error)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_credit_that_is_taken_back_while_messages_are_read_costs_none_of_them(left: int) -> None:
    rig, reader = Rig(), Reluctant()
    rig.stored(b"1", b"2", b"3")
    browser = Browser(rig.main, reader, 0, 2**63 - 1)
    reader.credit = 10
    browser.go_on()
    reader.credit = left
    rig.settle()
    assert reader.seen == [b"1", b"2", b"3"][:left]
    reader.credit = 10
    browser.go_on()
    rig.settle()
    assert reader.seen == [b"1", b"2", b"3"]


async def test_a_drain_gives_credit_back_and_later_credit_goes_on(server: Served, queue: str) -> None:
    async with raw(server) as client:
        browser = await browse(client, queue)
        assert await client.drain(browser) == []
        assert browser.credit == 0
        await send_orders(client, queue, [1, 2])
        assert client.received(browser) == []
        assert names(await client.drain(browser)) == orders(1, 2)
        await send_orders(client, queue, [3])
        assert names(await client.receive(browser)) == orders(3)


async def test_a_drain_shows_all_there_is_however_much_it_is(server: Served, queue: str) -> None:
    """More than is read at once, and more than may wait for the socket: who drains reads to the end of the log."""
    count = 600
    payloads = [build(properties=Properties(message_id=f"order {n}"), body=data(bytes(8_000))) for n in range(count)]
    async with raw(server) as client:
        link = await client.attach_sender(queue)
        for payload in payloads[:-1]:
            link.send(payload)
        assert await client.send(link, payloads[-1]) is None
        browser = await browse(client, queue)
        assert names(await client.drain(browser, 10_000)) == orders(*range(count))


# --- elsewhere --------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_queue_is_browsed_like_a_queue(server: Served, queue: str) -> None:
    async with raw(server) as client:
        await send_orders(client, queue, range(1, 5))
        receiver = await client.attach_receiver(queue)
        for delivery in await client.receive(receiver, 3):
            assert await client.settle(receiver, delivery, Rejected()) is None
        dead = f"{queue}/$DeadLetterQueue"
        browser = await browse(client, dead, from_sequence_number=2)
        told = reply_properties(browser)
        assert (told["twinbus:low-sequence-number"], told["twinbus:next-sequence-number"]) == (1, 4)
        assert names(await client.drain(browser)) == orders(2, 3)
        browser.grant(10)
        [last] = await client.receive(receiver, 1)
        assert await client.settle(receiver, last, Rejected()) is None
        await client.until(lambda: len(client.received(browser)) == 3)
        assert names(client.received(browser)) == orders(2, 3, 4)
        assert server.counts(queue) == (0, 4)


async def test_a_queue_with_sessions_is_browsed_across_all_of_them(server: Served) -> None:
    queue = server.make_queue(RequiresSession="true")
    async with raw(server) as client:
        payloads = [order(number, session=session) for number, session in enumerate("abcab", 1)]
        await send(client, queue, *payloads)
        holder = await accept_session(client, queue, "a")
        assert names(await client.receive(holder, 2)) == orders(1, 4)
        browser = await browse(client, queue)
        found = await client.drain(browser)
        assert names(found) == orders(1, 2, 3, 4, 5)
        sessions = [message.properties and message.properties.group_id for message in map(_message, found)]
        assert sessions == list("abcab")
        another = await accept_session(client, queue, "b")
        assert names(await client.receive(another, 2)) == orders(2, 5)


def _message(delivery: Any) -> Message:  # noqa: ANN401
    return Message(delivery.payload)


async def test_browsers_keep_nobody_from_receiving(server: Served, queue: str) -> None:
    async with raw(server) as client:
        browsers: list[Receiver] = [await browse(client, queue) for _ in range(20)]
        await send_orders(client, queue, range(1, 4))
        receiver = await client.attach_receiver(queue, settled=True)
        assert names(await client.receive(receiver, 3)) == orders(1, 2, 3)
        assert server.counts(queue) == (0, 0)
        await _see_nothing(client, browsers)


async def _see_nothing(client: Raw, browsers: list[Receiver]) -> None:
    for browser in browsers:
        assert await client.drain(browser) == []
