"""Every public operation of the SDK for Python, many at the same time on one sender and one receiver.

The operations of the sync client are called from eight threads, those of the aio client with `asyncio.gather`. A
scenario fails if a call fails, if a message is missing, or if a message is not in the expected state.
"""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from tests.campaigns.sdk_concurrency.sdk_defects import DUPLICATE_SEND, SdkObserver, observe_aio, observe_sync, watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tests.support.server_process import ServerProcess

THREADS: Final = 8
TIMEOUT_S: Final = 25.0
LATER: Final = dt.timedelta(hours=1)
SINGLE: Final = 16
PAIRS: Final = 4
RENEWED: Final = 20
RENEW_AT_S: Final = 29
"""Remaining time of a lock of 30 seconds when it is renewed."""
TEXTS: Final = [f"m {number}" for number in range(SINGLE)] + [f"b{one} {two}" for one in range(PAIRS) for two in (0, 1)]
"""Bodies of messages that are sent one by one, and in batches of two."""
SCHEDULED: Final = [f"s {number}" for number in range(THREADS)]


class CallsFailed(Exception):
    """Some calls of a scenario failed, or did not return."""


def messages(kind: str, count: int, **details: Any) -> list[ServiceBusMessage]:  # noqa: ANN401  # arguments of a message
    return [ServiceBusMessage(f"{kind} {number}", **details) for number in range(count)]


def bodies_of(received: Iterable[Any]) -> collections.Counter[str]:
    return collections.Counter(b"".join(message.body).decode() for message in received)


def check_all_received(expected: Iterable[str], found: collections.Counter[str], observed: SdkObserver) -> None:
    """Check that each message was stored; count messages that the SDK sent more than once."""
    expected = list(expected)
    missing = [text for text in expected if not found[text]]
    if missing or found.keys() - set(expected):
        raise CallsFailed(f"missing {missing}, and not expected {sorted(found.keys() - set(expected))}")
    observed.faults[DUPLICATE_SEND] += found.total() - len(expected)


# --- the sync client --------------------------------------------------------------------------------------------------


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls from eight threads, and return their results in order."""
    pool = ThreadPoolExecutor(THREADS)
    futures = [pool.submit(call) for call in calls]
    done, hanging = wait(futures, timeout=TIMEOUT_S)
    pool.shutdown(wait=False, cancel_futures=True)
    errors = [f"{type(error).__name__}: {error}" for future in done if (error := future.exception()) is not None]
    if errors or hanging:
        raise CallsFailed(f"{len(errors)} of {len(calls)} calls failed, {len(hanging)} hang: {set(errors)}")
    return [future.result() for future in futures]


def receive_all(receiver: Any, count: int) -> list[Any]:  # noqa: ANN401  # of the SDK
    """Receive `count` messages: some from eight threads, which replace each other's credit, the rest from one."""
    batches = run_concurrently(*[partial(receiver.receive_messages, 3, max_wait_time=0.3)] * THREADS)
    received = [message for batch in batches for message in batch]
    deadline = time.monotonic() + TIMEOUT_S
    while len(received) < count and time.monotonic() < deadline:
        received += receiver.receive_messages(count - len(received), max_wait_time=5)
    if len(received) < count:
        raise CallsFailed(f"{len(received)} of {count} messages were received")
    return received


class SyncScenarios:
    """Scenarios of the sync client."""

    def __init__(self, server: ServerProcess, observed: SdkObserver) -> None:
        self._server = server
        self._observed = observed
        self._client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)

    def run(self) -> None:
        """Run all scenarios concurrently: the SDK waits most of the time."""
        with self._client, ThreadPoolExecutor(3) as pool:
            for scene in [pool.submit(scene) for scene in (self.queue, self.auto_lock_renewer, self.session)]:
                scene.result()

    def queue(self) -> None:
        """Send, schedule, cancel, peek, receive, renew, and settle in every way."""
        queue, client = self._server.create_queue(), self._client
        due = dt.datetime.now(dt.UTC) + LATER
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            sends = [partial(sender.send_messages, one) for one in messages("m", SINGLE)]
            sends += [partial(sender.send_messages, messages(f"b{number}", 2)) for number in range(PAIRS)]
            later = [partial(sender.schedule_messages, one, due) for one in messages("s", THREADS)]
            done = run_concurrently(*later[:4], *sends, *later[4:])
            numbers = [number for result in done if result for number in result]
            for peeked in run_concurrently(*[partial(receiver.peek_messages, 100, sequence_number=1)] * THREADS):
                check_all_received(TEXTS + SCHEDULED, bodies_of(peeked), SdkObserver())
            run_concurrently(*[partial(sender.cancel_scheduled_messages, number) for number in numbers])
            received = receive_all(receiver, len(TEXTS))
            check_all_received(TEXTS, bodies_of(received), self._observed)
            run_concurrently(*[partial(receiver.renew_message_lock, one) for one in received])
            run_concurrently(
                *interleave(settlements_of(receiver, received), [partial(receiver.peek_messages, 2)] * THREADS)
            )
            deferred = [one.sequence_number for one in received[2::4]]
            batches = run_concurrently(*[partial(receiver.receive_deferred_messages, number) for number in deferred])
            again = [message for batch in batches for message in batch]
            renewals = [partial(receiver.renew_message_lock, one) for one in again]
            run_concurrently(*interleave(renewals, [partial(receiver.peek_messages, 2)] * THREADS))
            run_concurrently(*[partial(receiver.complete_message, one) for one in again])
            left = receive_all(receiver, len(received[1::4]))
            run_concurrently(*[partial(receiver.complete_message, one) for one in left])
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            run_concurrently(*[partial(dead.complete_message, one) for one in receive_all(dead, len(received[3::4]))])
        self._check_empty(queue)

    def auto_lock_renewer(self) -> None:
        """Renew locks with eight threads of the SDK, and complete messages at the same time."""
        queue, client = self._server.create_queue(LockDuration="PT30S"), self._client
        with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
            AutoLockRenewer(max_lock_renewal_duration=60, max_workers=THREADS) as renewer,
        ):
            renewer._renew_period = RENEW_AT_S  # noqa: SLF001  # otherwise it waits until the last ten seconds of a lock
            sender.send_messages(messages("r", RENEWED))
            received: list[Any] = []
            while len(received) < RENEWED:
                received += receiver.receive_messages(RENEWED - len(received), max_wait_time=5)
            locked = {message.message_id: message.locked_until_utc for message in received}
            for message in received:
                renewer.register(receiver, message)
            deadline = time.monotonic() + TIMEOUT_S
            while any(message.locked_until_utc == locked[message.message_id] for message in received):
                if time.monotonic() > deadline:
                    raise CallsFailed(f"not all locks were renewed: {[str(one.auto_renew_error) for one in received]}")
                time.sleep(0.05)
            run_concurrently(*[partial(receiver.complete_message, one) for one in received])
        self._check_empty(queue)

    def session(self) -> None:
        """Use state, lock and messages of a session with one receiver."""
        queue, client = self._server.create_queue(RequiresSession="true"), self._client
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue, session_id="s") as receiver:
            sender.send_messages(messages("m", SINGLE, session_id="s"))
            session = receiver.session
            received = receive_all(receiver, SINGLE)
            calls = [partial(session.set_state, "a state")] * 4 + [partial(receiver.peek_messages, 2)] * 4
            run_concurrently(*interleave(calls, [session.renew_lock] * THREADS))
            states = run_concurrently(*[session.get_state] * THREADS)
            if set(states) != {b"a state"}:
                raise CallsFailed(f"the states are {states}")
            run_concurrently(
                *interleave(settlements_of(receiver, received), [session.renew_lock] * 4 + [session.get_state] * 4)
            )
            batches = run_concurrently(
                *[partial(receiver.receive_deferred_messages, one.sequence_number) for one in received[2::4]]
            )
            run_concurrently(*[partial(receiver.complete_message, one) for batch in batches for one in batch])
            left = receive_all(receiver, len(received[1::4]))
            run_concurrently(*[partial(receiver.complete_message, one) for one in left])
        self._check_empty(queue, dead=len(received[3::4]))

    def _check_empty(self, queue: str, dead: int = 0) -> None:
        if (counts := self._server.message_counts(queue)) != (0, dead):
            raise CallsFailed(f"{counts} messages are left in the queue and its dead-letter queue")


def settlements_of(receiver: Any, received: list[Any]) -> list[Callable[[], Any]]:  # noqa: ANN401  # of the SDK, sync or aio
    """Return calls that settle the messages, alternating between the four outcomes."""
    methods = (
        receiver.complete_message,
        receiver.abandon_message,
        receiver.defer_message,
        receiver.dead_letter_message,
    )
    return [partial(methods[number % 4], one) for number, one in enumerate(received)]


def interleave(calls: Sequence[Callable[[], Any]], others: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return both kinds of calls alternating, and then the rest of the longer list."""
    alternating = [call for pair in zip(calls, others, strict=False) for call in pair]
    least = min(len(calls), len(others))
    return [*alternating, *calls[least:], *others[least:]]


def run_sync(server: ServerProcess) -> SdkObserver:
    """Run all scenarios of the sync client once."""
    with observe_sync() as observed:
        SyncScenarios(server, observed).run()
    return observed


# --- the aio client ---------------------------------------------------------------------------------------------------


async def gather_all(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Make calls at the same time, and return their results in order."""
    async with asyncio.timeout(TIMEOUT_S):
        results = await asyncio.gather(*[call() for call in calls], return_exceptions=True)
    errors = [f"{type(error).__name__}: {error}" for error in results if isinstance(error, BaseException)]
    if errors:
        raise CallsFailed(f"{len(errors)} of {len(calls)} calls failed: {set(errors)}")
    return results


async def receive_all_aio(receiver: Any, count: int) -> list[Any]:  # noqa: ANN401  # of the SDK
    batches = await gather_all(*[partial(receiver.receive_messages, 3, max_wait_time=0.3)] * THREADS)
    received = [message for batch in batches for message in batch]
    deadline = time.monotonic() + TIMEOUT_S
    while len(received) < count and time.monotonic() < deadline:
        received += await receiver.receive_messages(count - len(received), max_wait_time=5)
    if len(received) < count:
        raise CallsFailed(f"{len(received)} of {count} messages were received")
    return received


class AioScenarios:
    """Scenarios of the aio client: the same as for the sync client."""

    def __init__(self, server: ServerProcess, observed: SdkObserver) -> None:
        self._server = server
        self._observed = observed

    async def run(self) -> None:
        client = AsyncServiceBusClient.from_connection_string(self._server.connection_string, retry_total=0)
        async with client:
            await asyncio.gather(self.queue(client), self.auto_lock_renewer(client), self.session(client))

    async def queue(self, client: AsyncServiceBusClient) -> None:
        queue, due = self._server.create_queue(), dt.datetime.now(dt.UTC) + LATER
        async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            sends = [partial(sender.send_messages, one) for one in messages("m", SINGLE)]
            sends += [partial(sender.send_messages, messages(f"b{number}", 2)) for number in range(PAIRS)]
            later = [partial(sender.schedule_messages, one, due) for one in messages("s", THREADS)]
            done = await gather_all(*later[:4], *sends, *later[4:])
            numbers = [number for result in done if result for number in result]
            for peeked in await gather_all(*[partial(receiver.peek_messages, 100, sequence_number=1)] * 10):
                check_all_received(TEXTS + SCHEDULED, bodies_of(peeked), SdkObserver())
            await gather_all(*[partial(sender.cancel_scheduled_messages, number) for number in numbers])
            received = await receive_all_aio(receiver, self._server.message_counts(queue)[0])
            check_all_received(TEXTS, bodies_of(received), self._observed)
            await gather_all(*[partial(receiver.renew_message_lock, one) for one in received])
            await gather_all(
                *interleave(settlements_of(receiver, received), [partial(receiver.peek_messages, 2)] * THREADS)
            )
            batches = await gather_all(
                *[partial(receiver.receive_deferred_messages, one.sequence_number) for one in received[2::4]]
            )
            again = [message for batch in batches for message in batch]
            await gather_all(*[partial(receiver.renew_message_lock, one) for one in again])
            await gather_all(*[partial(receiver.complete_message, one) for one in again])
            left = await receive_all_aio(receiver, len(received[1::4]))
            await gather_all(*[partial(receiver.complete_message, one) for one in left])
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            await gather_all(
                *[partial(dead.complete_message, one) for one in await receive_all_aio(dead, len(received[3::4]))]
            )
        self._check_empty(queue)

    async def auto_lock_renewer(self, client: AsyncServiceBusClient) -> None:
        queue = self._server.create_queue(LockDuration="PT30S")
        async with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
            AsyncAutoLockRenewer(max_lock_renewal_duration=60) as renewer,
        ):
            renewer._renew_period = RENEW_AT_S  # noqa: SLF001
            await sender.send_messages(messages("r", RENEWED))
            received: list[Any] = []
            while len(received) < RENEWED:
                received += await receiver.receive_messages(RENEWED - len(received), max_wait_time=5)
            locked = {message.message_id: message.locked_until_utc for message in received}
            for message in received:
                renewer.register(receiver, message)
            deadline = time.monotonic() + TIMEOUT_S
            while any(message.locked_until_utc == locked[message.message_id] for message in received):
                if time.monotonic() > deadline:
                    raise CallsFailed(f"not all locks were renewed: {[str(one.auto_renew_error) for one in received]}")
                await asyncio.sleep(0.05)
            await gather_all(*[partial(receiver.complete_message, one) for one in received])
        self._check_empty(queue)

    async def session(self, client: AsyncServiceBusClient) -> None:
        queue = self._server.create_queue(RequiresSession="true")
        async with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, session_id="s") as receiver,
        ):
            await sender.send_messages(messages("m", SINGLE, session_id="s"))
            session = receiver.session
            received = await receive_all_aio(receiver, SINGLE)
            calls = [partial(session.set_state, "a state")] * 4 + [partial(receiver.peek_messages, 2)] * 4
            await gather_all(*interleave(calls, [session.renew_lock] * THREADS))
            states = await gather_all(*[session.get_state] * THREADS)
            if set(states) != {b"a state"}:
                raise CallsFailed(f"the states are {states}")
            await gather_all(
                *interleave(settlements_of(receiver, received), [session.renew_lock] * 4 + [session.get_state] * 4)
            )
            numbers = [one.sequence_number for one in received[2::4]]
            batches = await gather_all(*[partial(receiver.receive_deferred_messages, number) for number in numbers])
            await gather_all(*[partial(receiver.complete_message, one) for batch in batches for one in batch])
            left = await receive_all_aio(receiver, len(received[1::4]))
            await gather_all(*[partial(receiver.complete_message, one) for one in left])
        self._check_empty(queue, dead=len(received[3::4]))

    def _check_empty(self, queue: str, dead: int = 0) -> None:
        if (counts := self._server.message_counts(queue)) != (0, dead):
            raise CallsFailed(f"{counts} messages are left in the queue and its dead-letter queue")


def run_aio(server: ServerProcess) -> SdkObserver:
    """Run all scenarios of the aio client once."""

    async def run(observed: SdkObserver) -> None:
        watching = asyncio.create_task(watch(observed))
        try:
            await AioScenarios(server, observed).run()
        finally:
            observed.is_over = True
            await watching

    with observe_aio() as observed:
        asyncio.run(run(observed))
    return observed
