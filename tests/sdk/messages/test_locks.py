"""Message locks: manual and automatic renewal, expiry, and settlement by another receiver."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from tests.sdk.bus import body_of, receive
from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from azure.servicebus import ServiceBusReceiver

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SHORTEST = {"LockDuration": "PT5S"}
SETTLEMENTS: dict[str, tuple[Callable[[ServiceBusReceiver, Any], None], tuple[int, int]]] = {
    "complete": (lambda receiver, message: receiver.complete_message(message), (0, 0)),
    "abandon": (lambda receiver, message: receiver.abandon_message(message), (1, 0)),
    "dead-letter": (lambda receiver, message: receiver.dead_letter_message(message, reason="why"), (0, 1)),
}


def test_renewing_a_message_lock_extends_it(every_bus: Bus, queue: str) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    before = message.locked_until_utc
    after = receiver.renew_message_lock(message)
    assert after > before
    assert message.locked_until_utc == after


def test_a_message_lock_expires_unless_it_is_renewed_automatically(bus: Bus, server: ServerProcess) -> None:
    """Test both cases at once, because the shortest lock lasts five seconds of real time."""
    queue, renewed_queue = server.create_queue(**SHORTEST), server.create_queue(**SHORTEST)
    sender, receiver, other = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    renewed_sender, renewed_receiver = bus.sender(renewed_queue), bus.receiver(renewed_queue)
    renewed_sender.send_messages(ServiceBusMessage("renewed"))
    [renewed] = receive(renewed_receiver, 1)
    stop_renewing = bus.renew(renewed_receiver, renewed, seconds=60)
    sender.send_messages(ServiceBusMessage("slow"))
    [message] = receive(receiver, 1)
    started = time.monotonic()

    [again] = receive(other, 1, timeout_s=20)
    assert 4 < time.monotonic() - started < 15
    assert (body_of(again), again.delivery_count) == (b"slow", 1)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(message)
    other.complete_message(again)
    assert server.message_counts(queue) == (0, 0)

    assert renewed.auto_renew_error is None
    renewed_receiver.complete_message(renewed)
    stop_renewing()
    assert server.message_counts(renewed_queue) == (0, 0)


def test_the_server_refuses_a_lost_lock_that_the_client_considers_valid(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    """The SDK checks its own clock first; another receiver may have settled the message meanwhile."""
    sender, receiver, other = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    sender.send_messages([ServiceBusMessage("x") for _ in range(4)])
    messages = receive(receiver, 4)
    for message in messages:
        other.complete_message(message)
        message._settled = False  # noqa: SLF001  # as if another process had done it
    assert server.message_counts(queue) == (0, 0)
    for settle, _ in SETTLEMENTS.values():
        with pytest.raises(MessageLockLostError):
            settle(receiver, messages.pop())
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(messages.pop())
    sender.send_messages(ServiceBusMessage("still well"))
    assert body_of(receive(receiver, 1)[0]) == b"still well"


def test_a_message_can_be_settled_only_once(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    receiver.complete_message(message)
    with pytest.raises(MessageAlreadySettled):
        receiver.complete_message(message)


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_a_message_can_be_settled_by_another_receiver_of_its_queue(
    bus: Bus, server: ServerProcess, queue: str, settlement: str
) -> None:
    settle, counts = SETTLEMENTS[settlement]
    sender, receiver, other = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    settle(other, receive(receiver, 1)[0])
    assert server.message_counts(queue) == counts
    received = other.receive_messages(max_wait_time=20 if counts[0] else 0.2)
    assert [message.delivery_count for message in received] == [1] * counts[0]


def test_a_message_of_a_closed_receiver_stays_locked_and_another_can_settle_it(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver, other = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    receiver.close()
    assert other.receive_messages(max_wait_time=0.3) == []
    assert other.renew_message_lock(message) is not None
    other.complete_message(message)
    wait_until(lambda: server.message_counts(queue) == (0, 0))
