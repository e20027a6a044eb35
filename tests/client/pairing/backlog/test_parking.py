"""R050 to R057, Q06 to Q10 and Q22: messages that are parked in an outage arrive in the primary as they were sent."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind, FailedOver, MessageCannotBeParked, NotSent, ReservedPropertyName
from twinbus.model.errors import MessageTooLarge
from twinbus.model.message import encode_batch
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 262_144
OUTAGE: Final[dict[str, Any]] = {"failover_interval": 0, "enable_syphon": True}


def sized(total: int, **options: object) -> BrokeredMessage:
    """A message that has exactly `total` bytes."""
    spare = len(BrokeredMessage(b"x" * 1_000, message_id="1", **options).encode(0)) - 1_000  # type: ignore[arg-type]
    message = BrokeredMessage(b"x" * (total - spare), message_id="1", **options)  # type: ignore[arg-type]
    assert len(message.encode(0)) == total
    return message


async def after_outage(app: Application, *messages: BrokeredMessage, path: str = "orders") -> list[BrokeredMessage]:
    """Send messages while the primary is down, restore it, and return the messages that arrive."""
    primary = app.namespaces.primary
    primary.outage.stop()
    for message in messages:
        await app.queue_client(path).send(message)
    assert len(app.events_of(EventKind.PARKED)) == len(messages)
    primary.outage.restore()
    await asyncio.sleep(120)
    assert await app.parked_messages() == []
    return await primary.messages(path)


@in_virtual_time
async def test_r055_r056_a_message_arrives_as_it_was_sent() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, **OUTAGE) as app:
            sent = BrokeredMessage(
                "apples",
                message_id="id",
                session_id="7",
                correlation_id="a",
                label="fruit",
                content_type="text/plain",
                reply_to="me",
                time_to_live=dt.timedelta(hours=1),
                properties={"pounds": 2, "ripe": True, "picked": dt.datetime(2026, 9, 1, tzinfo=dt.UTC)},
            )
            (message,) = await after_outage(app, sent, path="baskets")
            for name in ("body", "message_id", "session_id", "correlation_id", "label", "content_type", "reply_to"):
                assert getattr(message, name) == getattr(sent, name), name
            assert message.time_to_live == dt.timedelta(hours=1)
            own = {name: value for name, value in message.properties.items() if not name.startswith("x-ms-")}
            assert own == sent.properties
            assert {name for name in message.properties if name.startswith("x-ms-")} == {
                "x-ms-parked-at",
                "x-ms-parked-for",
                "x-ms-parked-for-ms",
            }


@in_virtual_time
async def test_r055_parked_messages_do_not_expire_and_are_not_scheduled() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        later = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 3600, dt.UTC)
        await app.queue_client().send(BrokeredMessage("short", time_to_live=dt.timedelta(seconds=1)))
        await app.queue_client().send(BrokeredMessage("later", scheduled_enqueue_time_utc=later))
        await asyncio.sleep(600)
        assert {message.text for message in await app.parked_messages()} == {"short", "later"}
        assert {message.state for message in await app.parked_messages()} == {"active"}


@in_virtual_time
async def test_q10_a_future_scheduled_time_is_kept_and_a_past_one_is_due_at_once() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        now_s = app.namespaces.clock.wall_ms() / 1000
        soon, later = (dt.datetime.fromtimestamp(now_s + seconds, dt.UTC) for seconds in (60, 7200))
        messages = await after_outage(
            app,
            BrokeredMessage("soon", scheduled_enqueue_time_utc=soon),
            BrokeredMessage("later", scheduled_enqueue_time_utc=later),
        )
        assert {message.text: message.state for message in messages} == {"soon": "active", "later": "scheduled"}
        await asyncio.sleep(7200)
        assert sorted(message.state for message in await app.namespaces.primary.messages("orders")) == ["active"] * 2


@in_virtual_time
async def test_q09_deduct_parked_time_dead_letters_messages_that_expired_in_the_backlog_queue() -> None:
    async with in_memory_pair_application(deduct_parked_time=True, **OUTAGE) as app:
        long, short = dt.timedelta(hours=1), dt.timedelta(seconds=20)
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(BrokeredMessage("long", time_to_live=long))
        await app.queue_client().send(BrokeredMessage("short", time_to_live=short))
        await asyncio.sleep(60)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        (arrived,) = await app.namespaces.primary.messages("orders")
        assert arrived.text == "long"
        assert arrived.time_to_live is not None
        assert dt.timedelta(minutes=57) < arrived.time_to_live < dt.timedelta(minutes=59, seconds=1)
        paths = [f"{queue.path}/$DeadLetterQueue" for queue in app.pairing.rotation.queues]
        dead = [message for path in paths for message in await app.namespaces.secondary.messages(path)]
        assert [(message.text, message.dead_letter_reason) for message in dead] == [("short", "TTLExpiredException")]
        assert "its time to live was 20 s" in str(dead[0].dead_letter_error_description)


@in_virtual_time
async def test_q07_a_reserved_property_name_is_refused_healthy_or_failed_over() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        message = BrokeredMessage("apples", properties={"x-ms-path": "mine"})
        for _ in range(2):
            with pytest.raises(ReservedPropertyName) as error:
                await app.queue_client().send(message)
            assert str(error.value) == (
                "a property is named 'x-ms-path': that name is reserved for parked messages; use another name"
            )
            app.namespaces.primary.outage.stop()
        assert await app.parked_messages() == []


@in_virtual_time
async def test_r057_q08_a_message_at_the_limit_is_sent_if_healthy_and_refused_if_failed_over() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        await queue.send(sized(LIMIT))
        assert len(await app.namespaces.primary.messages("orders")) == 1
        assert not queue.sender.can_be_parked(sized(LIMIT))
        assert queue.sender.can_be_parked(sized(LIMIT - 200))
        app.namespaces.primary.outage.stop()
        await asyncio.sleep(1)  # until the client detects the outage, its sends may have arrived
        with pytest.raises(MessageCannotBeParked) as error:
            await queue.send(sized(LIMIT))
        assert "more than a backlog queue accepts (262,144): make it smaller" in str(error.value)
        assert str(error.value).endswith("; it was not sent")
        await queue.send(sized(LIMIT - 200))
        with pytest.raises(MessageTooLarge):
            await queue.send(sized(LIMIT + 1))
        assert len(await app.parked_messages()) == 1


@in_virtual_time
async def test_q08_a_message_with_properties_near_their_limit_cannot_be_parked() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        large_properties = {f"p{number}": "x" * 30_000 for number in range(2)} | {"p2": "x" * 5_420}
        message = BrokeredMessage("x", message_id="m" * 32, session_id="s" * 10, properties=large_properties)
        await queue.send(message)
        app.namespaces.primary.outage.stop()
        with pytest.raises(
            MessageCannotBeParked, match=r"bytes of properties when parked, \d+ more than the limit \(65,536\)"
        ):
            await queue.send(message)
        assert await app.parked_messages() == []


@in_virtual_time
async def test_q22_a_send_in_a_transaction_is_refused_while_failed_over() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        async with app.primary.transaction() as transaction:
            await queue.send(BrokeredMessage("apples"), transaction=transaction)
        assert await app.arrived_bodies() == ["apples"]
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("pears"))
        with pytest.raises(FailedOver, match="a transaction needs the primary and cannot be parked; nothing was sent"):
            async with app.primary.transaction() as transaction:
                await queue.send(BrokeredMessage("plums"), transaction=transaction)
        assert [message.text for message in await app.parked_messages()] == ["pears"]


@in_virtual_time
async def test_q22_scheduling_while_failed_over_parks_and_cannot_be_cancelled() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        queue = app.queue_client()
        later = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 7200, dt.UTC)
        app.namespaces.primary.outage.stop()
        number = await queue.schedule(BrokeredMessage("later"), later)
        with pytest.raises(FailedOver, match="it is parked with its scheduled time, and cannot be cancelled"):
            await queue.cancel_scheduled(number)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        (message,) = await app.namespaces.primary.messages("orders")
        assert (message.state, message.scheduled_enqueue_time_utc) == ("scheduled", later)


@in_virtual_time
async def test_q22_a_batch_is_parked_whole_in_one_backlog_queue() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client().send_batch([BrokeredMessage(str(number)) for number in range(50)])
        assert len({event.backlog_queue for event in app.events_of(EventKind.PARKED)}) == 1
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert sorted(await app.arrived_bodies(), key=int) == [str(number) for number in range(50)]


def large_batch(count: int = 100) -> list[BrokeredMessage]:
    """A batch that the primary accepts, and that is too large with the properties that parking adds."""
    size = 2_000
    while True:
        batch = [BrokeredMessage(f"{number:03}" + "x" * size, session_id="7") for number in range(count)]
        if len(encode_batch([message.encode(0) for message in batch], batch[0])) > LIMIT - count:
            return batch
        size += 1


@in_virtual_time
async def test_q22_a_batch_that_cannot_be_parked_whole_is_split_in_order() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        queue, batch = app.queue_client(), large_batch()
        numbers = [message.text[:3] for message in batch]
        await queue.send_batch(batch)
        assert [text[:3] for text in await app.arrived_bodies()] == numbers
        app.namespaces.primary.outage.stop()
        await queue.send_batch(batch)
        assert len({event.backlog_queue for event in app.events_of(EventKind.PARKED)}) == 1
        assert [message.text[:3] for message in await app.parked_messages()] == numbers
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert [text[:3] for text in await app.arrived_bodies()] == numbers * 2


@in_virtual_time
async def test_q22_if_the_secondary_fails_between_parts_of_a_batch_the_error_counts_safe_messages() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        namespaces, batch = app.namespaces, large_batch()
        namespaces.primary.outage.stop()
        app.pairing.on_event(lambda _event: namespaces.secondary.outage.stop(), {EventKind.PARKED})
        with pytest.raises(NotSent, match="its first 50 messages are safe, the others may have been") as failed:
            await app.queue_client().send_batch(batch)
        assert (failed.value.stored, failed.value.safe) == (list(range(50)), 50)
        assert failed.value.may_have_happened is failed.value.may_have_arrived is True
        namespaces.secondary.outage.restore()
        assert [message.text[:3] for message in await app.parked_messages()] == [
            message.text[:3] for message in batch[:50]
        ]


@in_virtual_time
async def test_q18_q22_a_part_of_a_batch_does_not_overtake_an_earlier_part_in_the_spool(tmp_path: Path) -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20, spool_dir=tmp_path) as app:
        namespaces, batch = app.namespaces, large_batch()
        namespaces.primary.outage.stop()
        namespaces.secondary.outage.stop()
        app.pairing.on_event(lambda _event: namespaces.secondary.outage.restore(), {EventKind.SPOOLED})
        await app.queue_client().send_batch(batch)
        await asyncio.sleep(120)
        assert [message.text[:3] for message in await app.parked_messages()] == [message.text[:3] for message in batch]


@in_virtual_time
async def test_q08_q22_a_batch_with_a_message_that_cannot_be_parked_at_all_is_refused_whole() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        large_properties = {f"p{number}": "x" * 30_000 for number in range(2)} | {"p2": "x" * 5_420}
        batch = [BrokeredMessage("x"), BrokeredMessage("x", session_id="s" * 10, properties=large_properties)]
        await app.queue_client().send_batch(batch)
        app.namespaces.primary.outage.stop()
        with pytest.raises(MessageCannotBeParked, match="bytes of properties"):
            await app.queue_client().send_batch(batch)
        assert await app.parked_messages() == []


@in_virtual_time
async def test_q08_q22_a_batch_that_a_healthy_primary_accepts_can_be_parked() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        queue, batch = app.queue_client(), large_batch(105)
        assert queue.can_be_parked(batch)
        assert queue.can_be_parked(iter(batch))
        await queue.send_batch(batch)
        app.namespaces.primary.outage.stop()
        await queue.send_batch(batch)
        numbers = [message.text[:3] for message in batch]
        assert [message.text[:3] for message in await app.parked_messages()] == numbers
        assert len({event.backlog_queue for event in app.events_of(EventKind.PARKED)}) == 1
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert [text[:3] for text in await app.arrived_bodies()] == numbers * 2


@pytest.mark.parametrize("first_back", ["primary", "secondary"])
@in_virtual_time
async def test_q22_x08_a_large_batch_survives_the_spool_and_a_restart_in_order(tmp_path: Path, first_back: str) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_session=True)
        batch, options = large_batch(105), {**OUTAGE, "operation_timeout": 20, "spool_dir": tmp_path}
        async with paired_application(namespaces, **options) as app:
            namespaces.primary.outage.stop()
            namespaces.secondary.outage.stop()
            await app.queue_client().send_batch(batch)
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.count == len(batch)
        getattr(namespaces, first_back).outage.restore()
        async with paired_application(namespaces, require_secondary=False, **options) as app:
            await asyncio.sleep(120)
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.count == 0
            namespaces.primary.outage.restore()
            namespaces.secondary.outage.restore()
            await asyncio.sleep(120)
            assert [text[:3] for text in await app.arrived_bodies()] == [message.text[:3] for message in batch]


@in_virtual_time
async def test_q19_q22_x08_a_batch_that_is_too_large_for_the_primary_leaves_the_spool_in_parts(tmp_path: Path) -> None:
    """While the primary is down, no error can reach the sender, and no single message is too large."""
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders", requires_session=True)
        batch = [BrokeredMessage(f"{number:03}" + "x" * 3_000, session_id="7") for number in range(100)]
        async with paired_application(namespaces, **OUTAGE, operation_timeout=20, spool_dir=tmp_path) as app:
            namespaces.primary.outage.stop()
            namespaces.secondary.outage.stop()
            await app.queue_client().send(BrokeredMessage("000", session_id="7"))
            await app.queue_client().send_batch(batch)  # spooled as a whole, behind the first message
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            assert [text[:3] for text in await app.arrived_bodies()] == [
                "000",
                *[message.text[:3] for message in batch],
            ]
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.refused == 0


@in_virtual_time
async def test_q08_a_batch_can_be_parked_if_each_of_its_messages_can() -> None:
    async with in_memory_pair_application() as app:
        sender = app.primary.create_message_sender("orders")
        small, large = BrokeredMessage("small"), sized(LIMIT)
        assert sender.can_be_parked([])
        assert sender.can_be_parked([small, sized(LIMIT - 200)])
        assert not sender.can_be_parked([small, large])
        assert not sender.can_be_parked([small, BrokeredMessage("x", properties={"x-ms-path": "reserved"})])
        unpaired, _ = app.namespaces.factories()
        assert not unpaired.create_queue_client("orders").can_be_parked([small])


@in_virtual_time
async def test_q08_q22_a_batch_of_one_message_is_parked_if_that_message_can_be() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        overhead = len(BrokeredMessage(b"x" * 1_000, message_id="1").encode(0)) - 1_000
        queue, size = app.queue_client(), LIMIT - overhead
        while not queue.can_be_parked(BrokeredMessage(b"x" * size, message_id="1")):
            size -= 1
        message = BrokeredMessage(b"x" * size, message_id="1")
        app.namespaces.primary.outage.stop()
        await queue.send_batch([message])
        assert [len(parked.body) for parked in await app.parked_messages()] == [size]  # type: ignore[arg-type]


@in_virtual_time
async def test_r057_q08_the_largest_message_that_can_be_parked_also_comes_back() -> None:
    async with in_memory_pair_application(("q",), backlog_queue_count=1, **OUTAGE) as app:
        sender = app.primary.create_message_sender("q")
        total = next(size for size in range(LIMIT, 0, -1) if sender.can_be_parked(sized(size)))
        assert total > LIMIT - 2_048
        (message,) = await after_outage(app, sized(total), path="q")
        assert message.message_id == "1"
        assert app.events_of(EventKind.DEAD_LETTERED) == []
