"""Topics: each subscription gets its own copy of a message."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.client.errors import EntityNotFound
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_each_subscription_gets_and_settles_its_own_copy(every_bus: Bus) -> None:
    name = every_bus.create_topic("one", "two")
    topic = every_bus.shared_factory.create_topic_client(name)
    await topic.send(BrokeredMessage("news", properties={"n": 1}))
    await topic.send_batch(numbered_messages(3))
    for subscription in ("one", "two"):
        client = every_bus.shared_factory.create_subscription_client(name, subscription)
        received = await receive(client.receiver, 4)
        assert texts(received) == ["news", "0", "1", "2"]
        assert received[0].properties == {"n": 1}
        await client.receiver.complete_batch(received)
        assert await client.peek() is None


async def test_a_scheduled_message_is_published_when_it_is_due_and_can_be_cancelled(bus: Bus) -> None:
    name = bus.create_topic("one")
    topic = bus.shared_factory.create_topic_client(name)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    await topic.schedule(BrokeredMessage("soon"), soon)
    await topic.cancel_scheduled(await topic.schedule(BrokeredMessage("never"), soon))
    subscription = bus.shared_factory.create_subscription_client(name, "one", ReceiveMode.RECEIVE_AND_DELETE)
    assert (await receive_one(subscription.receiver)).text == "soon"
    assert await subscription.receive(0.3) is None


async def test_a_subscription_has_sessions_dead_letters_and_deferred_messages(bus: Bus) -> None:
    name = bus.create_topic("one", elements="<RequiresSession>true</RequiresSession>")
    await bus.shared_factory.create_topic_client(name).send_batch(numbered_messages(3, session_id="s"))
    client = bus.shared_factory.create_subscription_client(name, "one")
    assert await client.get_message_sessions() == ["s"]
    async with await client.accept_session() as session:
        dead, deferred, done = await receive(session, 3)
        await session.dead_letter(dead, "bad")
        await session.defer(deferred)
        await session.complete(done)
        [again] = await session.receive_deferred(deferred.sequence_number)
        await session.complete(again)
        await session.set_state(b"half")
        assert await session.get_state() == b"half"
    dead_letter = await receive_one(client.dead_letter_receiver())
    assert (dead_letter.text, dead_letter.dead_letter_reason) == ("0", "bad")


async def test_receiving_from_a_topic_and_sending_to_a_subscription_are_refused(bus: Bus) -> None:
    name = bus.create_topic("one")
    with pytest.raises(ServiceBusError):
        await bus.shared_factory.create_message_receiver(name).receive(1)
    with pytest.raises(ServiceBusError):
        await bus.shared_factory.create_message_sender(f"{name}/Subscriptions/one").send(BrokeredMessage("x"))
    with pytest.raises(EntityNotFound):
        await bus.shared_factory.create_subscription_client(name, "other").receive(1)
