"""Messages at the destinations and in the backlog queues at the end of a campaign.

Owns: receiving from queues, subscriptions and sessions, and looking at the dead-letter queues of the backlog.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tests.campaigns.outages.program_config import BACKLOG_QUEUES, PRIMARY_NAME
from tests.campaigns.outages.records import ArrivalRecord, DeadLetterRecord
from tests.campaigns.outages.streams import STREAMS, differences, make_message
from twinbus.client import ReceiveMode
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client import BrokeredMessage, MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.receiver import MessageReceiver

BATCH_SIZE: Final = 500
IDLE_TIMEOUT_S: Final = 4.0
BACKLOG_PATHS: Final = [f"{PRIMARY_NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES)]
POLL_INTERVAL_S: Final = 0.25
DUPLICATE_MARK: Final = "x-ms-possible-duplicate"


async def wait_until_drained(manager: NamespaceManager, timeout_s: float) -> list[str]:
    """Wait until the backlog queues of the secondary are empty; return problems if they are not."""
    deadline = time.monotonic() + timeout_s
    while True:
        runtimes = {path: await manager.get_queue_runtime(path) for path in BACKLOG_PATHS}
        waiting = {path: runtime.active_count + runtime.deferred_count for path, runtime in runtimes.items()}
        if not any(waiting.values()) or time.monotonic() > deadline:
            return [f"not drained: {count} messages are in {path}" for path, count in waiting.items() if count]
        await asyncio.sleep(POLL_INTERVAL_S)


async def peek_dead_letters(secondary: MessagingFactory) -> list[DeadLetterRecord]:
    """Peek all messages in the dead-letter queues of the backlog queues."""
    records = []
    for path in BACKLOG_PATHS:
        receiver = secondary.create_message_receiver(f"{path}/$DeadLetterQueue")
        while batch := await receiver.peek_batch(BATCH_SIZE):
            records += [_dead_letter_record(path, message) for message in batch]
        await receiver.close()
    return records


def _dead_letter_record(path: str, message: BrokeredMessage) -> DeadLetterRecord:
    name, _, number = str(message.message_id).rpartition("/")
    reasons = (
        message.properties.get(property_name) for property_name in ("DeadLetterReason", "DeadLetterErrorDescription")
    )
    return DeadLetterRecord(
        path,
        name,
        int(number),
        ": ".join(str(reason) for reason in reasons if reason),
        DUPLICATE_MARK in message.properties,
    )


async def receive_all_destinations(primary: MessagingFactory) -> list[ArrivalRecord]:
    """Receive all messages at all destinations of all streams."""
    plain = {path for stream in STREAMS.values() if stream.session_id is None for path in stream.destinations}
    receiving = [receive_destination(primary, path) for path in sorted(plain)]
    for stream in STREAMS.values():
        if stream.session_id is not None:
            receiving += [_receive_session(primary, path, stream.session_id) for path in stream.destinations]
    return [arrival for records in await asyncio.gather(*receiving) for arrival in records]


async def receive_destination(
    primary: MessagingFactory, path: str, wait_s: float = IDLE_TIMEOUT_S
) -> list[ArrivalRecord]:
    """Receive all messages at a destination without sessions, until none arrives for `wait_s`."""
    receiver = primary.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE, prefetch=BATCH_SIZE)
    return await _receive_all(receiver, path, wait_s)


async def _receive_session(primary: MessagingFactory, path: str, session_id: str) -> list[ArrivalRecord]:
    client = primary.create_queue_client(path, ReceiveMode.RECEIVE_AND_DELETE)
    session = await client.accept_session(session_id, prefetch=BATCH_SIZE)
    return await _receive_all(session, path)


async def _receive_all(receiver: MessageReceiver, path: str, wait_s: float = IDLE_TIMEOUT_S) -> list[ArrivalRecord]:
    records = []
    while batch := await receiver.receive_batch(BATCH_SIZE, wait_s):
        records += [_arrival_record(path, message) for message in batch]
    await receiver.close()
    return records


def _arrival_record(destination: str, message: BrokeredMessage) -> ArrivalRecord:
    name, _, number = str(message.message_id).rpartition("/")
    stream = STREAMS.get(name)
    changed = differences(make_message(stream, int(number)), message) if stream is not None else ["nobody's message"]
    parked_at: dt.datetime | None = message.properties.get("x-ms-parked-at")  # type: ignore[assignment]
    return ArrivalRecord(
        destination,
        name,
        int(number),
        message.sequence_number,
        None if parked_at is None else milliseconds_of(parked_at),
        DUPLICATE_MARK in message.properties,
        tuple(changed),
    )
