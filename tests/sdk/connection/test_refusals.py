"""Refusals: the SDK raises its specific exception, and the client can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusSender

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

LIMIT = 262_144
GONE = r"was deleted|could not be found"


def assert_sends(sender: ServiceBusSender, server: ServerProcess, queue: str) -> None:
    """Assert that the sender still works, on the same connection."""
    before = server.message_counts(queue)
    sender.send_messages(ServiceBusMessage("all is well"))
    assert server.message_counts(queue) == (before[0] + 1, before[1])


def test_a_queue_that_does_not_exist_is_not_found(every_bus: Bus) -> None:
    sender, receiver = every_bus.sender("nowhere"), every_bus.receiver("nowhere")
    with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
        receiver.receive_messages(max_wait_time=1)


def test_the_management_of_a_queue_that_does_not_exist_is_refused(bus: Bus) -> None:
    with pytest.raises(ServiceBusError):
        bus.receiver("nowhere").peek_messages()


def test_sending_to_a_dead_letter_queue_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="amqp:not-allowed") as caught:
        bus.sender(f"{queue}/$DeadLetterQueue").send_messages(ServiceBusMessage("x"))
    assert not isinstance(caught.value, MessagingEntityNotFoundError)


def test_a_message_that_is_too_large_is_refused_and_the_sender_continues(
    every_bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender = every_bus.sender(queue)
    for size in (LIMIT, LIMIT + 1, 3 * LIMIT, 2_000_000):
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * size))
    assert_sends(sender, server, queue)


def test_a_list_whose_total_size_is_too_large_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender = bus.sender(queue)
    sender.send_messages(ServiceBusMessage("open"))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages([ServiceBusMessage(b"x" * 100_000) for _ in range(3)])
    assert_sends(sender, server, queue)


def test_properties_over_their_limits_are_refused_and_a_refused_batch_stores_nothing(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    many: dict[str | bytes, Any] = {f"property {number:03}": "x" * 600 for number in range(120)}
    with pytest.raises(MessageSizeExceededError, match="65536"):
        sender.send_messages(ServiceBusMessage("x", application_properties=many))
    with pytest.raises(MessageSizeExceededError, match="32768"):
        sender.send_messages(ServiceBusMessage("x", application_properties={"one": "x" * 33_000}))
    with pytest.raises(MessageSizeExceededError, match="32768"):
        sender.send_messages(
            [ServiceBusMessage("x"), ServiceBusMessage("x", application_properties={"one": "x" * 33_000})]
        )
    assert server.message_counts(queue) == (0, 0)
    sender.send_messages(ServiceBusMessage("x", application_properties={"one": "x" * 32_000, "two": "x" * 32_000}))
    assert len(receive(receiver, 1)[0].application_properties[b"two"]) == 32_000


def test_an_id_of_more_than_128_characters_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    """ServiceBusMessage refuses such an id before sending; AmqpAnnotatedMessage does not."""
    sender = bus.sender(queue)
    for field in ("message_id", "group_id"):
        with pytest.raises(ServiceBusError, match="argument-out-of-range"):
            sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", properties={field: "ü" * 129}))
    sender.send_messages(ServiceBusMessage("x", message_id="ü" * 128, session_id="ü" * 128))
    assert_sends(sender, server, queue)


def test_senders_and_receivers_of_a_deleted_queue_get_an_error(bus: Bus, server: ServerProcess, queue: str) -> None:
    """A sender first sees only a lost link; it gets the reason when it attaches again."""
    retrying_client = bus.client(retry_total=1, retry_backoff_factor=0.1, retry_mode="fixed")
    sender, receiver = bus.sender(queue, client=retrying_client), bus.receiver(queue, client=retrying_client)
    sender.send_messages(ServiceBusMessage("x"))
    receive(receiver, 1)
    server.delete_queue(queue)
    with pytest.raises(ServiceBusError, match=GONE):
        receiver.receive_messages(max_wait_time=5)
    with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
        sender.send_messages(ServiceBusMessage("y"))
