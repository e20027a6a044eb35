"""What is at the destinations when all is over.

Owns: receiving everything, from queues, subscriptions and sessions, and whether the backlog is empty.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tests.outages.ledger import Arrival
from tests.outages.place import BACKLOG_QUEUES, NAME
from tests.outages.scene import STREAMS, differences, message_of
from twinbus.client import ReceiveMode
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client import BrokeredMessage, MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.receiver import MessageReceiver

AT_ONCE: Final = 500
NOTHING_COMES_S: Final = 4.0
LOOK_EVERY_S: Final = 0.25


async def until_drained(manager: NamespaceManager, patience_s: float) -> list[str]:
    """Wait until the backlog queues of the secondary are empty; what is wrong with them after that."""
    deadline = time.monotonic() + patience_s
    paths = [f"{NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES)]
    while True:
        found = {path: await manager.get_queue_runtime(path) for path in paths}
        waiting = {path: runtime.active_count + runtime.deferred_count for path, runtime in found.items()}
        if not any(waiting.values()) or time.monotonic() > deadline:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    problems = [f"not drained: {count} messages are in {path}" for path, count in waiting.items() if count]
    return problems + [
        f"dead-lettered: {runtime.dead_letter_count} messages of {path}"
        for path, runtime in found.items()
        if runtime.dead_letter_count
    ]


async def receive_everything(primary: MessagingFactory) -> list[Arrival]:
    """All that is at any destination of any stream."""
    plain = {path for stream in STREAMS.values() if stream.session_id is None for path in stream.arrives_at}
    receiving = [
        _receive_all(primary.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE, prefetch=AT_ONCE), path)
        for path in sorted(plain)
    ]
    for stream in STREAMS.values():
        if stream.session_id is not None:
            receiving += [_receive_session(primary, path, stream.session_id) for path in stream.arrives_at]
    return [arrival for found in await asyncio.gather(*receiving) for arrival in found]


async def _receive_session(primary: MessagingFactory, path: str, session_id: str) -> list[Arrival]:
    client = primary.create_queue_client(path, ReceiveMode.RECEIVE_AND_DELETE)
    session = await client.accept_session(session_id, prefetch=AT_ONCE)
    return await _receive_all(session, path)


async def _receive_all(receiver: MessageReceiver, path: str) -> list[Arrival]:
    found = []
    while batch := await receiver.receive_batch(AT_ONCE, NOTHING_COMES_S):
        found += [_arrival(path, message) for message in batch]
    await receiver.close()
    return found


def _arrival(destination: str, message: BrokeredMessage) -> Arrival:
    name, _, number = str(message.message_id).rpartition("/")
    stream = STREAMS.get(name)
    changed = differences(message_of(stream, int(number)), message) if stream is not None else ["nobody's message"]
    parked_at: dt.datetime | None = message.properties.get("x-ms-parked-at")  # type: ignore[assignment]
    return Arrival(
        destination,
        name,
        int(number),
        message.sequence_number,
        None if parked_at is None else milliseconds_of(parked_at),
        "x-ms-possible-duplicate" in message.properties,
        tuple(changed),
    )
