"""Receiving: peek-lock and receive-and-delete, prefetch, iteration, waiting, and empty queues."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.sdk.bus import body_of, receive
from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

RECEIVE_AND_DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def orders(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"order {number}") for number in range(count)]


def bodies(count: int) -> list[bytes]:
    return [b"order %d" % number for number in range(count)]


def test_a_locked_message_stays_in_the_queue_until_it_is_completed(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(orders(5))
    received = receive(receiver, 5)
    assert server.message_counts(queue) == (5, 0)
    for left, message in zip((4, 3, 2, 1, 0), received, strict=True):
        receiver.complete_message(message)
        assert server.message_counts(queue) == (left, 0)


def test_a_locked_message_is_not_received_again(bus: Bus, queue: str) -> None:
    sender, receiver, other = bus.sender(queue), bus.receiver(queue), bus.receiver(queue)
    sender.send_messages(orders(1))
    receive(receiver, 1)
    assert other.receive_messages(max_wait_time=0.3) == []


def test_receive_and_delete_removes_messages_from_the_queue(every_bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    sender.send_messages(orders(5))
    assert [body_of(message) for message in receive(receiver, 5)] == bodies(5)
    assert server.message_counts(queue) == (0, 0)


def test_a_receiver_gets_no_more_than_it_asks_for(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(orders(5))
    for _ in range(5):
        assert len(receiver.receive_messages(max_message_count=1, max_wait_time=20)) == 1


def test_a_receiver_with_prefetch_gets_all_messages_in_order(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue, prefetch_count=20)
    sender.send_messages(orders(100))
    received: list[bytes] = []
    while len(received) < 100:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
        received.append(body_of(message))
    assert received == bodies(100)
    assert server.message_counts(queue) == (0, 0)


def test_iterating_over_a_receiver_ends_when_no_message_arrives(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue, max_wait_time=1)
    sender.send_messages(orders(10))
    received = []
    for message in receiver:
        received.append(body_of(message))
        receiver.complete_message(message)
    assert received == bodies(10)
    assert server.message_counts(queue) == (0, 0)


def test_receiving_from_an_empty_queue_returns_nothing_and_the_receiver_can_be_reused(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    assert receiver.receive_messages(max_wait_time=0.3) == []
    sender.send_messages(orders(1))
    assert len(receive(receiver, 1)) == 1


def test_a_waiting_receiver_gets_a_new_message_before_its_timeout(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    assert receiver.receive_messages(max_wait_time=0.2) == []
    with ThreadPoolExecutor(1) as thread:
        started = time.monotonic()
        waiting = thread.submit(receiver.receive_messages, max_message_count=1, max_wait_time=40)
        sender.send_messages(orders(1))
        assert [body_of(message) for message in waiting.result(50)] == bodies(1)
    assert time.monotonic() - started < 20


def test_prefetched_messages_of_a_closed_receiver_are_released_to_others(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, prefetching = bus.sender(queue), bus.receiver(queue, prefetch_count=50)
    sender.send_messages(orders(10))
    [first] = receive(prefetching, 1)
    prefetching.complete_message(first)
    prefetching.close()
    receiver = bus.receiver(queue)
    received = receive(receiver, 9)
    assert sorted(body_of(message) for message in received) == bodies(10)[1:]
    assert {message.delivery_count for message in received} == {0}
    wait_until(lambda: server.message_counts(queue) == (9, 0))
