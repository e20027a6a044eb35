"""Messages near the limit of their size, and ten thousand small ones in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

NEARLY_THE_LIMIT = 262_144 - 200
MANY = 10_000
AT_A_TIME = 1_000
KEEP_ALIVE_S = 600
"""Longer than the test: the SDK's thread that keeps connections alive reads, too, and puts messages out of order."""


def test_messages_near_the_limit_are_received_settled_and_dead_lettered(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    for number in range(3):
        sender.send_messages(ServiceBusMessage(bytes([number]) * NEARLY_THE_LIMIT))
    for number, count in ((0, 0), (0, 1), (1, 0), (2, 0)):
        [message] = receive(receiver, 1)
        assert body_of(message) == bytes([number]) * NEARLY_THE_LIMIT
        assert message.delivery_count == count
        if (number, count) == (0, 0):
            receiver.abandon_message(message)
        elif number == 1:
            receiver.dead_letter_message(message, reason="too much")
        else:
            receiver.complete_message(message)
    assert server.message_counts(queue) == (0, 1)


def test_ten_thousand_small_messages_are_received_in_their_order(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender = bus.sender(queue)
    receiver = bus.receiver(
        queue,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        prefetch_count=AT_A_TIME,
        keep_alive=KEEP_ALIVE_S,
    )
    for start in range(0, MANY, AT_A_TIME):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(start, start + AT_A_TIME)])
    received: list[int] = []
    while len(received) < MANY:
        found = receiver.receive_messages(max_message_count=AT_A_TIME, max_wait_time=20)
        assert found, f"{len(received)} of {MANY}"
        received += [int(body_of(message)) for message in found]
    assert received == list(range(MANY))
    assert server.message_counts(queue) == (0, 0)
