"""A restart keeps deferred, scheduled and expiring messages, duplicate detection, sessions and their states."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageNotFoundError

from tests.sdk.bus import AsyncDriver, Bus, SyncDriver, body_of, receive
from tests.support.server_process import run_server, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess


class MessagesBeforeRestart:
    """Messages and sessions that closed clients left before the restart."""

    def __init__(self, bus: Bus, server: ServerProcess) -> None:
        self.queue = server.create_queue(RequiresDuplicateDetection="true", DeadLetteringOnMessageExpiration="true")
        self.sessions = server.create_queue(RequiresSession="true", UserMetadata="mine", LockDuration="PT57S")
        sender, receiver = bus.sender(self.queue), bus.receiver(self.queue)
        session_sender, session_receiver = bus.sender(self.sessions), bus.receiver(self.sessions, session_id="s")
        properties = AmqpMessageProperties(message_id="1")
        annotations = {"mine": "to be delivered"}
        sender.send_messages(
            AmqpAnnotatedMessage(data_body=b"deferred", properties=properties, delivery_annotations=annotations)
        )
        [deferred] = receive(receiver, 1)
        receiver.defer_message(deferred)
        self.deferred = deferred.sequence_number
        now = dt.datetime.now(dt.UTC)
        [self.cancelled] = sender.schedule_messages(ServiceBusMessage("cancelled"), now + dt.timedelta(hours=1))
        [self.late] = sender.schedule_messages(ServiceBusMessage("late"), now + dt.timedelta(hours=1))
        sender.schedule_messages(ServiceBusMessage("due while it was down"), now + dt.timedelta(seconds=2))
        sender.cancel_scheduled_messages(self.cancelled)
        sender.send_messages(ServiceBusMessage("expires", time_to_live=dt.timedelta(seconds=2)))
        session_sender.send_messages([ServiceBusMessage("1", session_id="s"), ServiceBusMessage("2", session_id="s")])
        session_receiver.session.set_state("half done")
        receive(session_receiver, 1)
        for closing in bus.close_in_background():
            closing.result(20)

    def check(self, bus: Bus, server: ServerProcess) -> None:
        sender, receiver = bus.sender(self.queue), bus.receiver(self.queue)
        session_receiver = bus.receiver(self.sessions, session_id="s")
        wait_until(lambda: server.message_counts(self.queue) == (1, 1))
        [due] = receive(receiver, 1)
        assert body_of(due) == b"due while it was down"
        sender.send_messages(ServiceBusMessage("again", message_id="1"))
        assert server.message_counts(self.queue) == (1, 1), "it is a duplicate"
        [deferred] = receiver.receive_deferred_messages(self.deferred)
        assert body_of(deferred) == b"deferred"
        annotations = deferred.raw_amqp_message.delivery_annotations or {}
        assert annotations[b"mine"] == b"to be delivered"
        peeked = receiver.peek_messages(9, sequence_number=1)
        assert [(body_of(message), message.state) for message in peeked] == [
            (b"deferred", ServiceBusMessageState.DEFERRED),
            (b"late", ServiceBusMessageState.SCHEDULED),
            (b"due while it was down", ServiceBusMessageState.ACTIVE),
        ]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(self.cancelled)
        sender.cancel_scheduled_messages(self.late)
        assert session_receiver.session.get_state() == b"half done"
        received = receive(session_receiver, 2)
        assert [(body_of(message), message.delivery_count) for message in received] == [(b"1", 0), (b"2", 0)]
        properties = bus.administration.get_queue(self.sessions)
        assert (properties.user_metadata, properties.lock_duration) == ("mine", dt.timedelta(seconds=57))


def test_messages_in_every_state_survive_a_restart(tmp_path: Path, loop: AsyncDriver) -> None:
    with run_server(tmp_path) as server, ThreadPoolExecutor(2) as threads:
        messages_by_client = list(
            threads.map(
                lambda bus: MessagesBeforeRestart(bus, server),
                [Bus(SyncDriver(), server, tls=False), Bus(loop, server, tls=True)],
            )
        )
        server.stop()
        server.start()
        buses = [Bus(SyncDriver(), server, tls=False), Bus(loop, server, tls=True)]
        list(threads.map(lambda messages, bus: messages.check(bus, server), messages_by_client, buses))
        for bus in buses:
            for closing in bus.close_in_background():
                closing.result(20)
