"""Status of a queue: sending, receiving or both can be disabled, for open links and new ones."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

ALLOWED = {
    "Active": (True, True),
    "SendDisabled": (False, True),
    "ReceiveDisabled": (True, False),
    "Disabled": (False, False),
}
"""Whether sending and receiving are allowed, by status."""
DISABLED_STATUSES = [status for status in ALLOWED if status != "Active"]


def check_links(sender: Any, receiver: Any, status: str) -> None:  # noqa: ANN401  # the SDK's, of a queue with messages
    can_send, can_receive = ALLOWED[status]
    if can_send:
        sender.send_messages(ServiceBusMessage("more"))
    else:
        with pytest.raises(MessagingEntityDisabledError, match=status):
            sender.send_messages(ServiceBusMessage("more"))
    if can_receive:
        receiver.complete_message(receive(receiver, 1)[0])
    else:
        with pytest.raises(MessagingEntityDisabledError, match=status):
            receiver.receive_messages(max_wait_time=5)


def test_a_disabled_status_applies_to_open_and_new_links_until_the_queue_is_active_again(
    bus: Bus, server: ServerProcess
) -> None:
    """A sender first sees only a lost link; it gets the reason when it attaches again."""
    retrying_client = bus.client(retry_total=1, retry_backoff_factor=0.1, retry_mode="fixed")
    client_without_retries = bus.client()
    assert bus.administration is not None, "it is made once"

    def disable_and_enable(status: str) -> None:
        queue = server.create_queue()
        sender, receiver = bus.sender(queue, client=retrying_client), bus.receiver(queue, client=retrying_client)
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
        receiver.complete_message(receive(receiver, 1)[0])
        bus.update_queue(queue, status=status)
        links = bus.sender(queue, client=client_without_retries), bus.receiver(queue, client=client_without_retries)
        check_links(sender, receiver, status)
        check_links(*links, status)
        can_send, can_receive = ALLOWED[status]
        assert server.message_counts(queue) == (4 + 2 * can_send - 2 * can_receive, 0)
        bus.update_queue(queue, status="Active")
        check_links(sender, receiver, "Active")

    with ThreadPoolExecutor(len(DISABLED_STATUSES)) as threads:
        list(threads.map(disable_and_enable, DISABLED_STATUSES))


def test_a_queue_can_be_created_disabled(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(Status="Disabled")
    check_links(bus.sender(queue), bus.receiver(queue), "Disabled")
    assert bus.administration.get_queue(queue).status == "Disabled"


def test_a_waiting_receiver_fails_at_once_when_the_queue_is_disabled(bus: Bus, queue: str) -> None:
    receiver = bus.receiver(queue)
    assert receiver.peek_messages() == []
    handle: Any = receiver
    waiting = handle._driver.start(lambda: handle._handler.receive_messages(max_wait_time=30))  # noqa: SLF001
    bus.update_queue(queue, status="ReceiveDisabled")
    with pytest.raises(MessagingEntityDisabledError, match="ReceiveDisabled"):
        waiting.result(10)


def test_session_receivers_fail_when_the_queue_is_disabled(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    bus.sender(queue).send_messages(ServiceBusMessage("x", session_id="s"))
    holder = bus.receiver(queue, session_id="s")
    receive(holder, 1)
    waiting = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    bus.update_queue(queue, status="Disabled")
    for receiver in (holder, waiting):
        with pytest.raises(MessagingEntityDisabledError, match="Disabled"):
            receiver.receive_messages(max_wait_time=5)
    bus.update_queue(queue, status="Active")
    again = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert [(body_of(message), message.delivery_count) for message in receive(again, 1)] == [(b"x", 0)]


def test_a_send_disabled_queue_refuses_scheduling_and_keeps_scheduled_messages(bus: Bus, queue: str) -> None:
    due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    sender = bus.sender(queue)
    [number] = sender.schedule_messages(ServiceBusMessage("x"), due)
    bus.update_queue(queue, status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        sender.schedule_messages(ServiceBusMessage("y"), due)
    assert [message.sequence_number for message in bus.receiver(queue).peek_messages(9)] == [number]
