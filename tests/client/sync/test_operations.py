"""Sending, receiving, sessions, transactions and errors with the blocking client."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING

import pytest

from twinbus.client.errors import EntityNotFound, ObjectClosed
from twinbus.client.sync import BrokeredMessage, FactoryState, MessagingFactory, ReceiveMode
from twinbus.client.transaction import TransactionState

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess
    from twinbus.client.sync import MessageReceiver, MessageSession, QueueClient


def receive_one(receiver: QueueClient | MessageReceiver | MessageSession) -> BrokeredMessage:
    message = receiver.receive(20)
    assert message is not None
    return message


def test_messages_are_sent_received_and_settled(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue())
    queue.send_batch(BrokeredMessage(f"{number}") for number in range(4))
    done, again, later, dead = (receive_one(queue) for _ in range(4))
    queue.complete(done)
    queue.abandon(again, {"tries": 1})
    queue.defer(later)
    queue.dead_letter(dead, "bad")
    message = receive_one(queue)
    assert (message.text, message.properties) == ("1", {"tries": 1})
    assert queue.renew_lock(message) == message.locked_until_utc
    assert [each.text for each in queue.receive_deferred(later.sequence_number)] == ["2"]
    assert receive_one(queue.dead_letter_receiver(ReceiveMode.RECEIVE_AND_DELETE)).dead_letter_reason == "bad"
    assert [each.text for each in queue.peek_batch(9)] == ["1", "2"]
    assert queue.receive(0) is None
    queue.receiver.complete_batch([message])


def test_messages_are_scheduled_and_cancelled(factory: MessagingFactory, server: ServerProcess) -> None:
    sender = factory.create_message_sender(server.create_queue())
    number = sender.schedule(BrokeredMessage("later"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    with factory.create_message_receiver(sender.path) as receiver:
        receiver.open()
        waiting = receiver.peek()
        assert waiting is not None
        assert waiting.sequence_number == number
        sender.cancel_scheduled(number)
        assert receiver.peek(1) is None
    assert receiver.is_closed


def test_a_loop_over_messages_ends_when_the_client_is_closed(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue())
    queue.prefetch = 5
    queue.send_batch([BrokeredMessage(f"{number}") for number in range(3)])
    received = []
    for message in queue:
        received.append(message.text)
        queue.complete(message)
        if len(received) == 3:
            threading.Timer(0.2, queue.close).start()
    assert received == ["0", "1", "2"]
    with pytest.raises(ObjectClosed):
        queue.send(BrokeredMessage("x"))


def test_sessions_are_accepted_and_keep_their_state(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue(RequiresSession="true"))
    queue.send(BrokeredMessage("x", session_id="one"))
    assert queue.get_message_sessions() == ["one"]
    with queue.accept_session(timeout=10) as session:
        assert session.session_id == "one"
        session.complete(receive_one(session))
        session.set_state(b"done")
        assert session.renew_session_lock() == session.locked_until_utc
    with queue.accept_session("one") as session:
        assert session.get_state() == b"done"


def test_a_message_sent_to_a_topic_is_received_from_its_subscription(
    factory: MessagingFactory, server: ServerProcess
) -> None:
    topic = f"topic-of-{server.create_queue()}"
    server.create_entity(topic, "TopicDescription")
    server.create_entity(f"{topic}/Subscriptions/one", "SubscriptionDescription")
    factory.create_topic_client(topic).send(BrokeredMessage("news"))
    message = factory.create_subscription_client(topic, "one").receive(20)
    assert message is not None
    assert message.text == "news"


def test_transactions_are_committed_or_rolled_back(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue())
    with factory.transaction() as transaction:
        queue.send(BrokeredMessage("x"), transaction=transaction)
        assert server.message_counts(queue.path) == (0, 0)
    assert transaction.state is TransactionState.COMMITTED
    failing = factory.transaction()

    def fail() -> None:
        with failing:
            queue.complete(receive_one(queue), transaction=failing)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert failing.state is TransactionState.ROLLED_BACK
    assert server.message_counts(queue.path) == (1, 0)


def test_errors_have_the_same_classes_as_in_the_asyncio_client(factory: MessagingFactory) -> None:
    with pytest.raises(EntityNotFound):
        factory.create_queue_client("no-such-queue").send(BrokeredMessage("x"))
    with pytest.raises(ValueError, match="empty"):
        factory.create_queue_client("")
    with pytest.raises(ValueError, match="Endpoint"):
        MessagingFactory.from_connection_string("SharedAccessKeyName=Root;SharedAccessKey=x")


def test_closing_a_factory_closes_its_clients(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue())
    queue.send(BrokeredMessage("x"))
    assert (factory.state, factory.is_connected, factory.fault) == (FactoryState.OPEN, True, None)
    factory.close()
    factory.close()
    assert (factory.state, factory.is_connected, queue.is_closed) == (FactoryState.CLOSED, False, True)
