"""Every public operation of the SDK for Python, many at the same time on one sender and one receiver.

The sync client's are called from eight threads, the aio client's with `asyncio.gather`. A scene fails if a call fails,
if a message is missing, or if it is not where its operations leave it.
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
"""What is left of a lock of 30 seconds when it is renewed."""
TEXTS: Final = [f"m {number}" for number in range(SINGLE)] + [f"b{one} {two}" for one in range(PAIRS) for two in (0, 1)]
"""What is sent one by one, and in batches of two."""
SCHEDULED: Final = [f"s {number}" for number in range(THREADS)]


class CallsFailed(Exception):
    """Some calls of a scene failed, or did not return."""


def messages(kind: str, count: int, **details: Any) -> list[ServiceBusMessage]:  # noqa: ANN401  # of a message
    return [ServiceBusMessage(f"{kind} {number}", **details) for number in range(count)]


def bodies_of(found: Iterable[Any]) -> collections.Counter[str]:
    return collections.Counter(b"".join(message.body).decode() for message in found)


def check_all_received(wanted: Iterable[str], found: collections.Counter[str], observed: SdkObserver) -> None:
    """Each message was stored; more than once only where the SDK sent it more than once."""
    wanted = list(wanted)
    missing = [text for text in wanted if not found[text]]
    if missing or found.keys() - set(wanted):
        raise CallsFailed(f"missing {missing}, and not expected {sorted(found.keys() - set(wanted))}")
    observed.faults[DUPLICATE_SEND] += found.total() - len(wanted)


# --- the sync client --------------------------------------------------------------------------------------------------


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls from eight threads; what they return, in order."""
    pool = ThreadPoolExecutor(THREADS)
    futures = [pool.submit(call) for call in calls]
    done, hanging = wait(futures, timeout=TIMEOUT_S)
    pool.shutdown(wait=False, cancel_futures=True)
    errors = [f"{type(error).__name__}: {error}" for future in done if (error := future.exception()) is not None]
    if errors or hanging:
        raise CallsFailed(f"{len(errors)} of {len(calls)} calls failed, {len(hanging)} hang: {set(errors)}")
    return [future.result() for future in futures]


def receive_all(receiver: Any, count: int) -> list[Any]:  # noqa: ANN401  # of the SDK
    """So many messages: some by eight threads, of which each replaces the credit of the others, the rest by one."""
    batches = run_concurrently(*[partial(receiver.receive_messages, 3, max_wait_time=0.3)] * THREADS)
    found = [message for batch in batches for message in batch]
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive_messages(count - len(found), max_wait_time=5)
    if len(found) < count:
        raise CallsFailed(f"{len(found)} of {count} messages were received")
    return found


class SyncScenarios:
    """Scenes for the sync client."""

    def __init__(self, server: ServerProcess, observed: SdkObserver) -> None:
        self._server = server
        self._observed = observed
        self._client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)

    def run(self) -> None:
        """All of them, side by side: most of the time the SDK waits."""
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
            found = receive_all(receiver, len(TEXTS))
            check_all_received(TEXTS, bodies_of(found), self._observed)
            run_concurrently(*[partial(receiver.renew_message_lock, one) for one in found])
            run_concurrently(
                *interleave(settlements_of(receiver, found), [partial(receiver.peek_messages, 2)] * THREADS)
            )
            deferred = [one.sequence_number for one in found[2::4]]
            taken = run_concurrently(*[partial(receiver.receive_deferred_messages, number) for number in deferred])
            again = [message for batch in taken for message in batch]
            renewals = [partial(receiver.renew_message_lock, one) for one in again]
            run_concurrently(*interleave(renewals, [partial(receiver.peek_messages, 2)] * THREADS))
            run_concurrently(*[partial(receiver.complete_message, one) for one in again])
            left = receive_all(receiver, len(found[1::4]))
            run_concurrently(*[partial(receiver.complete_message, one) for one in left])
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            run_concurrently(*[partial(dead.complete_message, one) for one in receive_all(dead, len(found[3::4]))])
        self._check_empty(queue)

    def auto_lock_renewer(self) -> None:
        """Locks that are renewed by eight threads of the SDK's own, and messages that are completed meanwhile."""
        queue, client = self._server.create_queue(LockDuration="PT30S"), self._client
        with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
            AutoLockRenewer(max_lock_renewal_duration=60, max_workers=THREADS) as renewer,
        ):
            renewer._renew_period = RENEW_AT_S  # noqa: SLF001  # else it waits for the last ten seconds of a lock
            sender.send_messages(messages("r", RENEWED))
            found: list[Any] = []
            while len(found) < RENEWED:
                found += receiver.receive_messages(RENEWED - len(found), max_wait_time=5)
            locked = {message.message_id: message.locked_until_utc for message in found}
            for message in found:
                renewer.register(receiver, message)
            deadline = time.monotonic() + TIMEOUT_S
            while any(message.locked_until_utc == locked[message.message_id] for message in found):
                if time.monotonic() > deadline:
                    raise CallsFailed(f"not all locks were renewed: {[str(one.auto_renew_error) for one in found]}")
                time.sleep(0.05)
            run_concurrently(*[partial(receiver.complete_message, one) for one in found])
        self._check_empty(queue)

    def session(self) -> None:
        """State, lock and messages of a session that one receiver has."""
        queue, client = self._server.create_queue(RequiresSession="true"), self._client
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue, session_id="s") as receiver:
            sender.send_messages(messages("m", SINGLE, session_id="s"))
            session = receiver.session
            found = receive_all(receiver, SINGLE)
            calls = [partial(session.set_state, "a state")] * 4 + [partial(receiver.peek_messages, 2)] * 4
            run_concurrently(*interleave(calls, [session.renew_lock] * THREADS))
            states = run_concurrently(*[session.get_state] * THREADS)
            if set(states) != {b"a state"}:
                raise CallsFailed(f"the states are {states}")
            run_concurrently(
                *interleave(settlements_of(receiver, found), [session.renew_lock] * 4 + [session.get_state] * 4)
            )
            taken = run_concurrently(
                *[partial(receiver.receive_deferred_messages, one.sequence_number) for one in found[2::4]]
            )
            run_concurrently(*[partial(receiver.complete_message, one) for batch in taken for one in batch])
            left = receive_all(receiver, len(found[1::4]))
            run_concurrently(*[partial(receiver.complete_message, one) for one in left])
        self._check_empty(queue, dead=len(found[3::4]))

    def _check_empty(self, queue: str, dead: int = 0) -> None:
        if (counts := self._server.message_counts(queue)) != (0, dead):
            raise CallsFailed(f"{counts} messages are left in the queue and its dead-letter queue")


def settlements_of(receiver: Any, found: list[Any]) -> list[Callable[[], Any]]:  # noqa: ANN401  # of the SDK, sync or aio
    """Settle each message, in turn in each of the four ways."""
    ways = (receiver.complete_message, receiver.abandon_message, receiver.defer_message, receiver.dead_letter_message)
    return [partial(ways[number % 4], one) for number, one in enumerate(found)]


def interleave(calls: Sequence[Callable[[], Any]], others: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Both kinds of calls, in turn, and then what is left of one."""
    both = [call for pair in zip(calls, others, strict=False) for call in pair]
    least = min(len(calls), len(others))
    return [*both, *calls[least:], *others[least:]]


def run_sync(server: ServerProcess) -> SdkObserver:
    """All scenes of the sync client, once."""
    with observe_sync() as observed:
        SyncScenarios(server, observed).run()
    return observed


# --- the aio client ---------------------------------------------------------------------------------------------------


async def gather_all(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Make calls at the same time; what they return, in order."""
    async with asyncio.timeout(TIMEOUT_S):
        results = await asyncio.gather(*[call() for call in calls], return_exceptions=True)
    errors = [f"{type(error).__name__}: {error}" for error in results if isinstance(error, BaseException)]
    if errors:
        raise CallsFailed(f"{len(errors)} of {len(calls)} calls failed: {set(errors)}")
    return results


async def receive_all_aio(receiver: Any, count: int) -> list[Any]:  # noqa: ANN401  # of the SDK
    batches = await gather_all(*[partial(receiver.receive_messages, 3, max_wait_time=0.3)] * THREADS)
    found = [message for batch in batches for message in batch]
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        found += await receiver.receive_messages(count - len(found), max_wait_time=5)
    if len(found) < count:
        raise CallsFailed(f"{len(found)} of {count} messages were received")
    return found


class AioScenarios:
    """Scenes for the aio client: the same."""

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
            found = await receive_all_aio(receiver, self._server.message_counts(queue)[0])
            check_all_received(TEXTS, bodies_of(found), self._observed)
            await gather_all(*[partial(receiver.renew_message_lock, one) for one in found])
            await gather_all(
                *interleave(settlements_of(receiver, found), [partial(receiver.peek_messages, 2)] * THREADS)
            )
            taken = await gather_all(
                *[partial(receiver.receive_deferred_messages, one.sequence_number) for one in found[2::4]]
            )
            again = [message for batch in taken for message in batch]
            await gather_all(*[partial(receiver.renew_message_lock, one) for one in again])
            await gather_all(*[partial(receiver.complete_message, one) for one in again])
            left = await receive_all_aio(receiver, len(found[1::4]))
            await gather_all(*[partial(receiver.complete_message, one) for one in left])
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            await gather_all(
                *[partial(dead.complete_message, one) for one in await receive_all_aio(dead, len(found[3::4]))]
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
            found: list[Any] = []
            while len(found) < RENEWED:
                found += await receiver.receive_messages(RENEWED - len(found), max_wait_time=5)
            locked = {message.message_id: message.locked_until_utc for message in found}
            for message in found:
                renewer.register(receiver, message)
            deadline = time.monotonic() + TIMEOUT_S
            while any(message.locked_until_utc == locked[message.message_id] for message in found):
                if time.monotonic() > deadline:
                    raise CallsFailed(f"not all locks were renewed: {[str(one.auto_renew_error) for one in found]}")
                await asyncio.sleep(0.05)
            await gather_all(*[partial(receiver.complete_message, one) for one in found])
        self._check_empty(queue)

    async def session(self, client: AsyncServiceBusClient) -> None:
        queue = self._server.create_queue(RequiresSession="true")
        async with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, session_id="s") as receiver,
        ):
            await sender.send_messages(messages("m", SINGLE, session_id="s"))
            session = receiver.session
            found = await receive_all_aio(receiver, SINGLE)
            calls = [partial(session.set_state, "a state")] * 4 + [partial(receiver.peek_messages, 2)] * 4
            await gather_all(*interleave(calls, [session.renew_lock] * THREADS))
            states = await gather_all(*[session.get_state] * THREADS)
            if set(states) != {b"a state"}:
                raise CallsFailed(f"the states are {states}")
            await gather_all(
                *interleave(settlements_of(receiver, found), [session.renew_lock] * 4 + [session.get_state] * 4)
            )
            numbers = [one.sequence_number for one in found[2::4]]
            taken = await gather_all(*[partial(receiver.receive_deferred_messages, number) for number in numbers])
            await gather_all(*[partial(receiver.complete_message, one) for batch in taken for one in batch])
            left = await receive_all_aio(receiver, len(found[1::4]))
            await gather_all(*[partial(receiver.complete_message, one) for one in left])
        self._check_empty(queue, dead=len(found[3::4]))

    def _check_empty(self, queue: str, dead: int = 0) -> None:
        if (counts := self._server.message_counts(queue)) != (0, dead):
            raise CallsFailed(f"{counts} messages are left in the queue and its dead-letter queue")


def run_aio(server: ServerProcess) -> SdkObserver:
    """All scenes of the aio client, once."""

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
