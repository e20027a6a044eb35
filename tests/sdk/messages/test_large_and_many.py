"""Messages near the size limit, and ten thousand small messages in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

NEARLY_MAX_SIZE = 262_144 - 200
MANY = 10_000
BATCH_SIZE = 1_000
KEEP_ALIVE_S = 600
"""Longer than the test, because the SDK's keep-alive thread also reads, which changes the order of messages."""


def test_messages_near_the_limit_are_received_settled_and_dead_lettered(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    for number in range(3):
        sender.send_messages(ServiceBusMessage(bytes([number]) * NEARLY_MAX_SIZE))
    for number, count in ((0, 0), (0, 1), (1, 0), (2, 0)):
        [message] = receive(receiver, 1)
        assert body_of(message) == bytes([number]) * NEARLY_MAX_SIZE
        assert message.delivery_count == count
        if (number, count) == (0, 0):
            receiver.abandon_message(message)
        elif number == 1:
            receiver.dead_letter_message(message, reason="too much")
        else:
            receiver.complete_message(message)
    assert server.message_counts(queue) == (0, 1)


def test_ten_thousand_small_messages_are_received_in_order(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender = bus.sender(queue)
    receiver = bus.receiver(
        queue,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        prefetch_count=BATCH_SIZE,
        keep_alive=KEEP_ALIVE_S,
    )
    for start in range(0, MANY, BATCH_SIZE):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(start, start + BATCH_SIZE)])
    received: list[int] = []
    while len(received) < MANY:
        messages = receiver.receive_messages(max_message_count=BATCH_SIZE, max_wait_time=20)
        assert messages, f"{len(received)} of {MANY}"
        received += [int(body_of(message)) for message in messages]
    assert received == list(range(MANY))
    assert server.message_counts(queue) == (0, 0)
