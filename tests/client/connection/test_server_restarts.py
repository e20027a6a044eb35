"""A server that is killed or stopped and continues on the same ports: clients continue, and no message is lost."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, Bus, numbered_messages, receive, receive_one, texts, wait_until
from tests.support.server_process import run_server
from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import ConnectionLost, TimedOut, may_have_happened
from twinbus.model.errors import MessageLockLost, OperationTimeout, SessionLockLost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENT = RetryPolicy(max_retries=500, first_pause_s=0.05, factor=1.0)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """Return a bus with its own server, which the test may kill or stop."""
    with run_server(tmp_path) as server:
        bus = Bus(server)
        yield bus
        _signal(bus, signal.SIGCONT)


def _signal(bus: Bus, number: signal.Signals) -> None:
    process = bus.server._process  # noqa: SLF001  # no other test sends signals
    assert process is not None
    process.send_signal(number)


async def test_senders_and_receivers_continue_after_the_server_is_killed_and_restarted(bus: Bus) -> None:
    factory = bus.factory(retry_policy=PATIENT, operation_timeout=60)
    queue, sessions, other = bus.create_queue(), bus.create_queue(**SESSIONS), bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    locked = await receive_one(queue)
    session = await sessions.accept_session("one")
    waiting = asyncio.ensure_future(other.receive(60))
    await queue.receiver.peek()
    bus.server.kill()
    sends = [asyncio.ensure_future(queue.send(message)) for message in numbered_messages(50)]
    await wait_until(lambda: not factory.is_connected)
    await asyncio.to_thread(bus.server.start)
    await asyncio.gather(*sends)
    assert bus.message_counts(queue) == (52, 0)
    with pytest.raises(MessageLockLost):
        await queue.complete(locked)
    with pytest.raises(SessionLockLost):
        await session.receive(1)
    received = await receive(queue, 52)
    assert texts(received[:2]) == ["0", "1"]
    assert sorted(texts(received[2:]), key=int) == [f"{number}" for number in range(50)]
    assert {message.delivery_count for message in received} == {1}
    await queue.receiver.complete_batch(received)
    await other.send(BrokeredMessage("at last"))
    message = await waiting
    assert message is not None
    assert message.text == "at last"


async def test_a_send_without_a_disposition_says_that_it_may_have_been_stored(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("0"))
    _signal(bus, signal.SIGSTOP)
    with pytest.raises(TimedOut, match="may have been stored") as raised:
        await queue.send(BrokeredMessage("1"), timeout=0.3)
    assert raised.value.was_sent
    assert may_have_happened(raised.value)
    with pytest.raises(OperationTimeout) as raised_by_new:
        await bus.shared_factory.create_message_sender(queue.path).send(BrokeredMessage("2"), timeout=0.3)
    assert not may_have_happened(raised_by_new.value), "the sender was not attached"
    _signal(bus, signal.SIGCONT)
    await queue.send(BrokeredMessage("3"))
    assert texts(await receive(queue, 3)) == ["0", "1", "3"]


async def test_a_send_whose_connection_is_lost_may_have_been_stored_whatever_the_last_error(bus: Bus) -> None:
    policy = RetryPolicy(max_retries=2, first_pause_s=0.05)
    queue = bus.factory(retry_policy=policy).create_queue_client(bus.server.create_queue())
    await queue.send(BrokeredMessage("0"))
    _signal(bus, signal.SIGSTOP)
    sending = asyncio.ensure_future(queue.send(BrokeredMessage("1")))
    await asyncio.sleep(0.1)
    bus.server.kill()
    with pytest.raises(ConnectionLost) as raised:
        await sending
    assert may_have_happened(raised.value)
    await asyncio.to_thread(bus.server.start)


async def test_a_receiver_of_a_silent_server_can_be_closed_and_leaves_no_message_locked(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.receiver.open()
    receiving = asyncio.ensure_future(queue.receive_batch(5, 60))
    attaching = asyncio.ensure_future(bus.create_queue().receive(60))
    await asyncio.sleep(0.1)
    _signal(bus, signal.SIGSTOP)
    opening = asyncio.ensure_future(bus.shared_factory.create_message_receiver(queue.path).open())
    await asyncio.sleep(0.1)
    for task in (receiving, attaching, opening):
        task.cancel()
    await asyncio.gather(receiving, attaching, opening, return_exceptions=True)
    async with asyncio.timeout(15):
        await queue.close()
    _signal(bus, signal.SIGCONT)
    await bus.shared_factory.create_message_sender(queue.path).send(BrokeredMessage("x"))
    message = await receive_one(bus.shared_factory.create_message_receiver(queue.path))
    assert (message.text, message.delivery_count) == ("x", 1)
