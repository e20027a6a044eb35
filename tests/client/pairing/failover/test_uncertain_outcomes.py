"""`may_have_happened` of an error is false only if the operation was certainly not carried out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.pairing.failover.test_duplicate_marks import LARGEST, LATENCY_S, losing_responses, marks
from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import ConnectionLost, EntityNotFound, ObjectClosed, may_have_happened
from twinbus.client.pairing import EventKind, MessageCannotBeParked, NotSent
from twinbus.client.sender import MessageSender
from twinbus.model.errors import DiskFull, MessageLockLost, MessageNotFound, ServiceBusError, StoreUnavailable
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COUNT = 40
PAGE = (Path(__file__).parents[4] / "docs" / "client.md").read_text()


@contextlib.asynccontextmanager
async def close_during_sends(app: Application, after_s: float) -> AsyncIterator[dict[str, ServiceBusError]]:
    """Send many messages at once, close the pair after `after_s`, and yield the errors of the sends by text."""
    queue = app.queue_client()
    errors: dict[str, ServiceBusError] = {}

    async def send(text: str) -> None:
        try:
            await queue.send(BrokeredMessage(text, message_id=text))
        except ServiceBusError as error:
            errors[text] = error

    await queue.sender.open()
    sends = [asyncio.ensure_future(send(str(number))) for number in range(COUNT)]
    await asyncio.sleep(after_s)
    await app.pairing.close()
    await asyncio.gather(*sends)
    yield errors


async def texts_in_either_namespace(app: Application) -> set[str]:
    """The texts of all messages in both namespaces, after the messages in flight have arrived."""
    for namespace in (app.namespaces.primary, app.namespaces.secondary):
        namespace.outage.restore()
    await asyncio.sleep(60)
    in_primary = await app.namespaces.primary.messages("orders")
    return {message.text for message in [*in_primary, *await app.parked_messages()]}


def uncertain_texts(errors: dict[str, ServiceBusError]) -> set[str]:
    return {text for text, error in errors.items() if may_have_happened(error)}


# --- close() ----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_q03_q04_held_sends_that_were_transmitted_are_uncertain_when_the_pair_is_closed() -> None:
    """The broker reports a hanging store as unavailable, but the store writes the messages when it recovers."""
    async with in_memory_pair_application(failover_interval=300, hold_during_failover_interval=True) as app:
        app.namespaces.primary.outage.hang_store()
        async with close_during_sends(app, after_s=45) as errors:
            assert len(errors) == COUNT
            assert await texts_in_either_namespace(app) == set(errors) == uncertain_texts(errors)
            assert not any("not sent" in str(error) for error in errors.values())


@in_virtual_time
async def test_q03_q04_sends_in_flight_to_the_primary_are_uncertain_when_the_pair_is_closed() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        await app.queue_client().sender.open()
        app.namespaces.primary.outage.slow(LATENCY_S)
        async with close_during_sends(app, after_s=7 * LATENCY_S) as errors:
            pass
        assert await texts_in_either_namespace(app) <= uncertain_texts(errors) | (
            set(map(str, range(COUNT))) - set(errors)
        )


@in_virtual_time
@pytest.mark.parametrize("has_spool", [False, True])
async def test_q03_q04_sends_in_flight_to_a_backlog_queue_are_uncertain_when_the_pair_is_closed(
    tmp_path: Path, *, has_spool: bool
) -> None:
    options: dict[str, Any] = {"spool_dir": tmp_path} if has_spool else {}
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, **options) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("before"))
        app.namespaces.secondary.outage.slow(LATENCY_S)
        sends = [asyncio.ensure_future(queue.send(BrokeredMessage(str(number)))) for number in range(COUNT)]
        await asyncio.sleep(1.5 * LATENCY_S)
        await app.pairing.close()
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert len(await texts_in_either_namespace(app)) == COUNT + 1
        assert [may_have_happened(error) for error in errors if error is not None] == [True] * COUNT
        assert {type(error) for error in errors} == {ConnectionLost}
        assert app.events_of(EventKind.QUEUE_OUT) == [], "closing the pair says nothing about the backlog queue"


@in_virtual_time
async def test_q03_q04_sends_that_wait_for_credit_are_certainly_not_sent_when_the_pair_is_closed() -> None:
    count = 3_000
    async with in_memory_pair_application(failover_interval=60) as app:
        queue = app.queue_client()
        await queue.sender.open()
        app.namespaces.primary.outage.slow(LATENCY_S)
        sends = [asyncio.ensure_future(queue.send(BrokeredMessage(str(number)))) for number in range(count)]
        await asyncio.sleep(1)
        await app.pairing.close()
        errors = dict(zip(map(str, range(count)), await asyncio.gather(*sends, return_exceptions=True), strict=True))
        failures = {text: error for text, error in errors.items() if isinstance(error, ServiceBusError)}
        assert len(failures) == count
        stored, uncertain = await texts_in_either_namespace(app), uncertain_texts(failures)
        assert stored <= uncertain
        assert 0 < len(uncertain) < count
        assert {type(failures[text]) for text in failures.keys() - uncertain} == {ObjectClosed}


@in_virtual_time
async def test_q03_q04_a_held_send_that_was_never_transmitted_is_certainly_not_sent() -> None:
    async with in_memory_pair_application(failover_interval=60, hold_during_failover_interval=True) as app:
        app.namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(5)
        await app.primary.close()
        with pytest.raises(ObjectClosed) as raised:
            await sending
        assert not raised.value.may_have_happened


# --- texts ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_q03_q04_a_message_too_large_to_park_is_uncertain_if_the_primary_did_not_respond() -> None:
    size = LARGEST - len(BrokeredMessage(b"", message_id="1").encode(0)) - 16
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        app.namespaces.primary.outage.hang()
        with pytest.raises(MessageCannotBeParked, match="it may have been stored") as raised:
            await queue.send(BrokeredMessage(b"x" * size, message_id="1"))
        assert raised.value.may_have_happened
        assert "not sent" not in str(raised.value)
        with pytest.raises(
            MessageCannotBeParked, match=r"more than a backlog queue accepts .*; it was not sent"
        ) as certain:
            await queue.send(BrokeredMessage(b"x" * size, message_id="2"))
        assert not certain.value.may_have_happened


@in_virtual_time
async def test_q03_q04_the_error_of_two_silent_namespaces_does_not_say_that_nothing_was_sent() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("before"))
        for namespace in (app.namespaces.primary, app.namespaces.secondary):
            namespace.outage.hang()
        with pytest.raises(NotSent, match=r"the message for 'orders' may have been stored, but no response") as raised:
            await queue.send(BrokeredMessage("apples"))
        error = raised.value
        assert may_have_happened(error) is error.may_have_happened is error.may_have_arrived is True
        with pytest.raises(NotSent, match=r"the message for 'orders' was not sent\. ") as certain:
            await queue.send(BrokeredMessage("pears"))
        assert (
            may_have_happened(certain.value)
            is certain.value.may_have_happened
            is certain.value.may_have_arrived
            is False
        )


@in_virtual_time
@pytest.mark.parametrize("is_paired", [False, True])
async def test_q03_q04_a_refusal_after_a_lost_response_is_uncertain(*, is_paired: bool) -> None:
    async with in_memory_pair_application() as app:
        sender = app.queue_client().sender if is_paired else MessageSender(app.pairing.primary, "orders")
        await sender.send(BrokeredMessage("before"))
        async with losing_responses(app.namespaces.primary):
            sending = asyncio.ensure_future(sender.send(BrokeredMessage("apples")))
            await asyncio.sleep(1.2 * LATENCY_S)
            await app.namespaces.primary.entities.delete("orders")
        with pytest.raises(EntityNotFound, match="it may have been stored") as raised:
            await sending
        assert raised.value.may_have_happened
        with pytest.raises(EntityNotFound) as certain:
            await sender.send(BrokeredMessage("pears"))
        assert not certain.value.may_have_happened


# --- disk failures of the broker --------------------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_q03_q04_a_send_to_a_full_disk_is_certainly_not_stored(*, is_partitioned: bool) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=is_partitioned)
        primary, _ = namespaces.factories(retry_policy=RetryPolicy(max_retries=0))
        sender = MessageSender(primary, "orders")
        await sender.open()
        namespaces.primary.outage.fill_disk()
        for key in (None, "7"):
            with pytest.raises(StoreUnavailable, match="full") as raised:
                await sender.send(BrokeredMessage("apples", partition_key=key))
            assert isinstance(raised.value, DiskFull) or is_partitioned
            assert not raised.value.may_have_happened
        namespaces.primary.outage.restore()
        await asyncio.sleep(60)
        assert await namespaces.primary.messages("orders") == []
        await primary.close()


@in_virtual_time
@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_q03_q04_a_send_to_a_hanging_disk_is_uncertain(*, is_partitioned: bool) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=is_partitioned)
        primary, _ = namespaces.factories(retry_policy=RetryPolicy(max_retries=0))
        sender = MessageSender(primary, "orders")
        await sender.send(BrokeredMessage("before"))
        namespaces.primary.outage.hang_store()
        with pytest.raises(ServiceBusError, match="its disk has not answered") as raised:
            await sender.send(BrokeredMessage("apples"))
        assert raised.value.may_have_happened
        with pytest.raises(ServiceBusError, match="its disk has not answered") as certain:
            await sender.send(BrokeredMessage("pears"))
        assert not certain.value.may_have_happened, (
            "by then the broker knows that the store does not respond, and writes nothing"
        )
        namespaces.primary.outage.restore()
        await asyncio.sleep(60)
        assert {message.text for message in await namespaces.primary.messages("orders")} == {"before", "apples"}
        await primary.close()


# --- other operations -------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_q03_q04_a_lost_lock_after_a_complete_without_a_response_is_uncertain() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        message = await queue.receive()
        assert message is not None
        async with losing_responses(app.namespaces.primary):
            completing = asyncio.ensure_future(queue.complete(message))
        with pytest.raises(MessageLockLost, match="may have been carried out") as raised:
            await completing
        assert raised.value.may_have_happened
        assert await app.arrived_bodies() == []


@in_virtual_time
async def test_q03_q04_cancelling_a_schedule_again_after_a_lost_response_is_uncertain() -> None:
    async with in_memory_pair_application() as app:
        queue = app.queue_client()
        later = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 7200, dt.UTC)
        number = await queue.schedule(BrokeredMessage("apples"), later)
        async with losing_responses(app.namespaces.primary):
            cancelling = asyncio.ensure_future(queue.cancel_scheduled(number))
        with pytest.raises(MessageNotFound) as raised:
            await cancelling
        assert raised.value.may_have_happened
        with pytest.raises(MessageNotFound) as certain:
            await queue.cancel_scheduled(number)
        assert not certain.value.may_have_happened


@in_virtual_time
async def test_q03_q04_a_failed_send_in_a_transaction_is_certain_and_a_failed_commit_is_not() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces) as app:
            queue = app.queue_client()
            transaction = app.primary.transaction()
            await queue.send(BrokeredMessage("apples"), transaction=transaction)
            async with losing_responses(namespaces.primary):
                sending = asyncio.ensure_future(queue.send(BrokeredMessage("pears"), transaction=transaction))
            with pytest.raises(ServiceBusError) as certain:
                await sending
            assert not certain.value.may_have_happened
            second = app.primary.transaction()
            await queue.send(BrokeredMessage("plums"), transaction=second)
            async with losing_responses(namespaces.primary):
                committing = asyncio.ensure_future(second.commit())
            with pytest.raises(ConnectionLost) as raised:
                await committing
            assert raised.value.may_have_happened
            assert await app.arrived_bodies() == ["plums"]


# --- the example for applications -------------------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.parametrize("detects_duplicates", [False, True])
async def test_q04_the_example_of_the_docs_stores_one_message_or_a_marked_copy(*, detects_duplicates: bool) -> None:
    (example,) = re.findall(r"```python\n(async def send_surely.*?)\n\n\nawait ", PAGE, re.DOTALL)
    example_globals: dict[str, Any] = {"asyncio": asyncio, "ServiceBusError": ServiceBusError}
    exec(example, example_globals)  # noqa: S102  # the example of our own page
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_duplicate_detection=detects_duplicates)
        primary, _ = namespaces.factories(retry_policy=RetryPolicy(max_retries=0))
        queue = primary.create_queue_client("orders")
        await queue.send(BrokeredMessage("before"))
        async with losing_responses(namespaces.primary):
            sending = asyncio.ensure_future(
                example_globals["send_surely"](queue, BrokeredMessage("apples", message_id="1"))
            )
        await sending
        namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(example_globals["send_surely"](queue, BrokeredMessage("pears", message_id="2")))
        await asyncio.sleep(0.5)
        namespaces.primary.outage.restore()
        await sending
        _, *stored = await namespaces.primary.messages("orders")
        copies = [None] if detects_duplicates else [None, True]
        assert marks(stored) == copies
        assert marks(stored, "pears") == [None], "it had certainly not been sent"
        await primary.close()
