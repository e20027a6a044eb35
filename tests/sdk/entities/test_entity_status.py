"""A queue can be closed for senders, for receivers or for both: to new links, and to those that are there."""

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
"""Whether one can send, and receive."""
CLOSED = [status for status in ALLOWED if status != "Active"]


def check(sender: Any, receiver: Any, status: str) -> None:  # noqa: ANN401  # the SDK's, of a queue with messages
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


def test_a_status_holds_for_links_that_are_open_and_for_new_ones_until_it_is_active_again(
    bus: Bus, server: ServerProcess
) -> None:
    """A sender learns only of a lost link at first, whatever the reason was; when it attaches again it is told."""
    patient = bus.client(retry_total=1, retry_backoff_factor=0.1, retry_mode="fixed")
    impatient = bus.client()
    assert bus.administration is not None, "it is made once"

    def close_and_open(status: str) -> None:
        queue = server.create_queue()
        sender, receiver = bus.sender(queue, client=patient), bus.receiver(queue, client=patient)
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
        receiver.complete_message(receive(receiver, 1)[0])
        bus.update_queue(queue, status=status)
        links = bus.sender(queue, client=impatient), bus.receiver(queue, client=impatient)
        check(sender, receiver, status)
        check(*links, status)
        can_send, can_receive = ALLOWED[status]
        assert server.message_counts(queue) == (4 + 2 * can_send - 2 * can_receive, 0)
        bus.update_queue(queue, status="Active")
        check(sender, receiver, "Active")

    with ThreadPoolExecutor(len(CLOSED)) as threads:
        list(threads.map(close_and_open, CLOSED))


def test_a_queue_can_be_made_closed(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(Status="Disabled")
    check(bus.sender(queue), bus.receiver(queue), "Disabled")
    assert bus.administration.get_queue(queue).status == "Disabled"


def test_who_waits_for_messages_is_told_at_once(bus: Bus, queue: str) -> None:
    receiver = bus.receiver(queue)
    assert receiver.peek_messages() == []
    handle: Any = receiver
    waiting = handle._driver.start(lambda: handle._handler.receive_messages(max_wait_time=30))  # noqa: SLF001
    bus.update_queue(queue, status="ReceiveDisabled")
    with pytest.raises(MessagingEntityDisabledError, match="ReceiveDisabled"):
        waiting.result(10)


def test_who_has_a_session_or_waits_for_one_is_told(bus: Bus, server: ServerProcess) -> None:
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


def test_nothing_can_be_scheduled_in_a_queue_that_is_closed_for_senders_and_what_is_scheduled_stays(
    bus: Bus, queue: str
) -> None:
    due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    sender = bus.sender(queue)
    [number] = sender.schedule_messages(ServiceBusMessage("x"), due)
    bus.update_queue(queue, status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        sender.schedule_messages(ServiceBusMessage("y"), due)
    assert [message.sequence_number for message in bus.receiver(queue).peek_messages(9)] == [number]
