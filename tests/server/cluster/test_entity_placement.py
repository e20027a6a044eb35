"""Which broker processes and stores a message has to do with: one of each, where the documents say so."""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.multi_process_server import (
    MAX_CONNECTION_ATTEMPTS,
    connect_client,
    connected_worker,
    connected_workers,
    stores_of,
)
from tests.support.partitioned_namespace import FRAGMENTS, fragment_of_message, key_for_fragment, receive
from twinbus.client import BrokeredMessage
from twinbus.model.errors import SessionCannotBeLocked

if TYPE_CHECKING:
    from tests.support.multi_process_server import MultiProcessServer
    from twinbus.client import MessageSession, MessagingFactory

STORES = 4


async def test_r125_r129_a_plain_queue_or_topic_has_one_broker_and_one_store_and_a_partitioned_one_has_all(
    two_workers: MultiProcessServer,
) -> None:
    owners = {store: worker for worker, stores in stores_of(two_workers).items() for store in stores}
    assert sorted(owners) == list(range(STORES)), "each store is open in one process"
    queues = [two_workers.create_queue() for _ in range(STORES)]
    topic = f"topic-{uuid.uuid4().hex}"
    two_workers.create_entity(topic, "TopicDescription")
    two_workers.create_entity(f"{topic}/subscriptions/all", "SubscriptionDescription")
    divided = two_workers.create_queue(EnablePartitioning="true")
    async with connect_client(two_workers) as factory:
        stores = {path: await _stores_of_messages(two_workers, factory, path) for path in [*queues, topic, divided]}
        assert [len(stores[path]) for path in [*queues, topic]] == [1] * (STORES + 1)
        assert stores[divided] == set(range(STORES))
        holder = connected_worker(two_workers)
        brokers = {path: owners[next(iter(stores[path]))] for path in queues}
        (here, *_), (there, *_) = (
            [path for path, owner in brokers.items() if owner == number] for number in (holder, 1 - holder)
        )
        two_workers.signal_worker(1 - holder, signal.SIGSTOP)
        try:
            for path in (here, divided):  # one process is enough: the other one has no part in it
                key = key_for_fragment(holder)
                await asyncio.wait_for(_send(factory, path, BrokeredMessage("works", partition_key=key)), 10)
            alone = asyncio.ensure_future(_send(factory, there, BrokeredMessage("waits")))
            await asyncio.wait([alone], timeout=0.3)
            assert not alone.done(), "nobody else serves it"
        finally:
            two_workers.signal_worker(1 - holder, signal.SIGCONT)
        await alone


async def test_r126_r112_r113_copies_and_sessions_are_handled_by_one_broker_whichever_a_client_is_connected_to(
    two_workers: MultiProcessServer,
) -> None:
    once = two_workers.create_queue(EnablePartitioning="true", RequiresDuplicateDetection="true")
    ordered = two_workers.create_queue(EnablePartitioning="true", RequiresSession="true")
    async with connect_client(two_workers) as one:
        await _send(one, once, BrokeredMessage("connects", message_id="0"))
        async with await _client_of_the_other(two_workers, once) as other:
            for number in range(20):
                for factory in (one, other):
                    await _send(factory, once, BrokeredMessage(f"{number}", message_id=f"{number}"))
                    for session in (key_for_fragment(0), key_for_fragment(1)):
                        await _send(factory, ordered, BrokeredMessage(f"{number}", session_id=session))
            found = await receive(one.create_queue_client(once), 20)
            assert sorted(int(str(message.message_id)) for message in found) == list(range(20))
            assert len({fragment_of_message(message) for message in found}) > FRAGMENTS // 4, "of both brokers"
            assert await other.create_queue_client(once).receive(timeout=0) is None
            for fragment in (0, 1):
                held = await other.create_queue_client(ordered).accept_session(key_for_fragment(fragment))
                messages = [message for _ in range(40) if (message := await held.receive(5)) is not None]
                assert {fragment_of_message(message) for message in messages} == {fragment}
                assert [int(message.text) for message in messages] == [number // 2 for number in range(40)]
                await held.set_state(b"packed")
                await held.close()
                again = await _accept(one, ordered, key_for_fragment(fragment))
                assert await again.get_state() == b"packed"
                await again.close()


async def _client_of_the_other(server: MultiProcessServer, queue: str) -> MessagingFactory:
    """A client whose connection is accepted by the worker that has none yet. The kernel chooses: it is tried often."""
    connected_worker(server)
    for _ in range(MAX_CONNECTION_ATTEMPTS):
        factory = connect_client(server)
        await _send(factory, queue, BrokeredMessage("connects", message_id="0"))
        if len(connected_workers(server)) == 2:
            return factory
        await factory.close()
    raise AssertionError(f"of {MAX_CONNECTION_ATTEMPTS} connections none came to the other worker")


async def _accept(factory: MessagingFactory, queue: str, session: str) -> MessageSession:
    """The process that has the session hears of its release a moment after the client that was connected to another."""
    while True:
        with suppress(SessionCannotBeLocked):
            return await factory.create_queue_client(queue).accept_session(session)


async def _send(factory: MessagingFactory, path: str, message: BrokeredMessage) -> None:
    await factory.create_message_sender(path).send(message)


async def _stores_of_messages(server: MultiProcessServer, factory: MessagingFactory, path: str) -> set[int]:
    """The stores in whose files a body is that is sent to an entity many times."""
    mark = f"mark {uuid.uuid4().hex}"
    sender = factory.create_message_sender(path)
    for _ in range(2 * FRAGMENTS):
        await sender.send(BrokeredMessage(mark))
    return {
        number
        for number, folder in server.stores.items()
        if any(mark.encode() in file.read_bytes() for file in folder.glob("*.log"))
    }
