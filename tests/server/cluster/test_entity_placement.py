"""Which brokers and stores hold an entity's messages: one of each for a plain entity, all for a partitioned entity."""

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


async def test_r125_r129_a_plain_entity_has_one_broker_and_store_and_a_partitioned_queue_has_all(
    two_workers: MultiProcessServer,
) -> None:
    owners = {store: worker for worker, stores in stores_of(two_workers).items() for store in stores}
    assert sorted(owners) == list(range(STORES)), "each store is open in one process"
    queues = [two_workers.create_queue() for _ in range(STORES)]
    topic = f"topic-{uuid.uuid4().hex}"
    two_workers.create_entity(topic, "TopicDescription")
    two_workers.create_entity(f"{topic}/subscriptions/all", "SubscriptionDescription")
    partitioned = two_workers.create_queue(EnablePartitioning="true")
    async with connect_client(two_workers) as factory:
        stores = {path: await _stores_of_messages(two_workers, factory, path) for path in [*queues, topic, partitioned]}
        assert [len(stores[path]) for path in [*queues, topic]] == [1] * (STORES + 1)
        assert stores[partitioned] == set(range(STORES))
        connected = connected_worker(two_workers)
        brokers = {path: owners[next(iter(stores[path]))] for path in queues}
        (local, *_), (remote, *_) = (
            [path for path, owner in brokers.items() if owner == number] for number in (connected, 1 - connected)
        )
        two_workers.signal_worker(1 - connected, signal.SIGSTOP)
        try:
            for path in (local, partitioned):  # needs one process only
                key = key_for_fragment(connected)
                await asyncio.wait_for(_send(factory, path, BrokeredMessage("works", partition_key=key)), 10)
            pending = asyncio.ensure_future(_send(factory, remote, BrokeredMessage("waits")))
            await asyncio.wait([pending], timeout=0.3)
            assert not pending.done(), "nobody else serves it"
        finally:
            two_workers.signal_worker(1 - connected, signal.SIGCONT)
        await pending


async def test_r126_r112_r113_one_broker_handles_a_message_id_or_session_for_every_client(
    two_workers: MultiProcessServer,
) -> None:
    deduplicated = two_workers.create_queue(EnablePartitioning="true", RequiresDuplicateDetection="true")
    with_sessions = two_workers.create_queue(EnablePartitioning="true", RequiresSession="true")
    async with connect_client(two_workers) as first:
        await _send(first, deduplicated, BrokeredMessage("connects", message_id="0"))
        async with await _connect_to_the_other_worker(two_workers, deduplicated) as other:
            for number in range(20):
                for factory in (first, other):
                    await _send(factory, deduplicated, BrokeredMessage(f"{number}", message_id=f"{number}"))
                    for session in (key_for_fragment(0), key_for_fragment(1)):
                        await _send(factory, with_sessions, BrokeredMessage(f"{number}", session_id=session))
            received = await receive(first.create_queue_client(deduplicated), 20)
            assert sorted(int(str(message.message_id)) for message in received) == list(range(20))
            assert len({fragment_of_message(message) for message in received}) > FRAGMENTS // 4, "of both brokers"
            assert await other.create_queue_client(deduplicated).receive(timeout=0) is None
            for fragment in (0, 1):
                accepted = await other.create_queue_client(with_sessions).accept_session(key_for_fragment(fragment))
                messages = [message for _ in range(40) if (message := await accepted.receive(5)) is not None]
                assert {fragment_of_message(message) for message in messages} == {fragment}
                assert [int(message.text) for message in messages] == [number // 2 for number in range(40)]
                await accepted.set_state(b"packed")
                await accepted.close()
                reaccepted = await _accept(first, with_sessions, key_for_fragment(fragment))
                assert await reaccepted.get_state() == b"packed"
                await reaccepted.close()


async def _connect_to_the_other_worker(server: MultiProcessServer, queue: str) -> MessagingFactory:
    """Return a client connected to the worker without a client. The kernel picks the worker, so connect repeatedly."""
    connected_worker(server)
    for _ in range(MAX_CONNECTION_ATTEMPTS):
        factory = connect_client(server)
        await _send(factory, queue, BrokeredMessage("connects", message_id="0"))
        if len(connected_workers(server)) == 2:
            return factory
        await factory.close()
    raise AssertionError(f"of {MAX_CONNECTION_ATTEMPTS} connections none came to the other worker")


async def _accept(factory: MessagingFactory, queue: str, session: str) -> MessageSession:
    """Accept a session, retrying: its owner may hear of the release later than the client that released it."""
    while True:
        with suppress(SessionCannotBeLocked):
            return await factory.create_queue_client(queue).accept_session(session)


async def _send(factory: MessagingFactory, path: str, message: BrokeredMessage) -> None:
    await factory.create_message_sender(path).send(message)


async def _stores_of_messages(server: MultiProcessServer, factory: MessagingFactory, path: str) -> set[int]:
    """Send a unique body to `path` many times, and return the stores whose files contain it."""
    mark = f"mark {uuid.uuid4().hex}"
    sender = factory.create_message_sender(path)
    for _ in range(2 * FRAGMENTS):
        await sender.send(BrokeredMessage(mark))
    return {
        number
        for number, folder in server.stores.items()
        if any(mark.encode() in file.read_bytes() for file in folder.glob("*.log"))
    }
