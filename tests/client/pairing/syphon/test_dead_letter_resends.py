"""Q19: an operator sends the dead letters of backlog queues again after removing their cause."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.client.pairing.syphon.test_syphon import dead_letters, park, poisoned
from tests.support.paired_application import Application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionLost
from twinbus.client.pairing import AlarmKind, EventKind
from twinbus.client.pairing.backlog.rewriting import DEFAULT_LOCK_MS
from twinbus.client.pairing.syphon.dead_letter_resend import DeadLetterResend
from twinbus.client.receiver import MessageReceiver
from twinbus.client.sender import MessageSender
from twinbus.model.errors import MessageLockLost
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

OUTAGE: Final[dict[str, Any]] = {
    "failover_interval": 0,
    "enable_syphon": True,
    "backlog_queue_count": 1,
    "not_found_grace": 0,
}
DUPLICATE_MARK: Final = "x-ms-possible-duplicate"


@contextlib.asynccontextmanager
async def with_dead_letters(*texts: str, sessions: Any = None, **message_options: Any) -> AsyncIterator[Application]:  # noqa: ANN401  # options of all messages
    """An application whose messages for `orders` were dead-lettered: the queue was missing for too long."""
    async with InMemoryPair() as namespaces, paired_application(namespaces, **OUTAGE) as app:
        namespaces.primary.outage.stop()
        for text in texts:
            await app.queue_client().send(BrokeredMessage(text, **message_options | (sessions or {}).get(text, {})))
        namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert len(await dead_letters(app)) == len(texts)
        yield app


async def send_again(app: Application, wait_s: float = 10, **options: Any) -> DeadLetterResend:  # noqa: ANN401
    """Send dead letters again as an operator does, while the application and its syphon run."""
    primary, secondary = app.namespaces.factories()
    async with primary, secondary:
        resend = DeadLetterResend(primary, secondary, {app.backlog_path(0): DEFAULT_LOCK_MS}, **options)
        await resend.run(wait_s)
    return resend


@in_virtual_time
async def test_q19_dead_letters_arrive_as_they_were_sent_when_the_cause_is_removed() -> None:
    sent = {"session_id": "7", "label": "fruit", "time_to_live": dt.timedelta(days=60), "properties": {"pounds": 2}}
    async with with_dead_letters(*[f"{number:03}" for number in range(250)], **sent) as app:
        await app.namespaces.primary.create_queue("orders", requires_session=True)
        resend = await send_again(app)
        assert (resend.moved, resend.remaining) == (250, 0)
        messages = await app.namespaces.primary.messages("orders")
        assert [message.text for message in messages] == [f"{number:03}" for number in range(250)]
        for message in messages:
            assert (message.session_id, message.label, message.time_to_live) == ("7", "fruit", sent["time_to_live"])
            own = {name: value for name, value in message.properties.items() if not name.startswith("x-ms-parked-")}
            assert own == {"pounds": 2}, "no dead-letter reason, and no mark"
        assert await dead_letters(app) == []
        assert AlarmKind.DEAD_LETTERED in {alarm.kind for alarm in app.pairing.observers.alarms.raised}
        await asyncio.sleep(900)
        assert app.pairing.observers.alarms.raised == ()


@in_virtual_time
async def test_q19_a_message_that_is_refused_again_keeps_its_reason_and_stops_no_other() -> None:
    async with with_dead_letters("1", "2", "good", "3", sessions={"good": {"session_id": "7"}}) as app:
        backlog = app.pairing.secondary.create_message_sender(app.backlog_path(0))
        await backlog.deliver(poisoned({"x-ms-path": 17}))
        await asyncio.sleep(60)
        await app.namespaces.primary.create_queue("orders", requires_session=True)
        resend = await send_again(app)
        assert await app.arrived_bodies() == ["good"]
        assert resend.moved == 1
        assert sorted(resend.rejected.values()) == [1, 3]
        malformed = "its property x-ms-path is 17, not the path of an entity"
        assert resend.rejected[None, malformed] == 1
        assert any(path == "orders" and "requires sessions" in why for path, why in resend.rejected)
        remaining = await dead_letters(app)
        assert [message.dead_letter_reason for message in remaining] == [
            *["EntityNotFound"] * 3,
            "ParkedMessageMalformed",
        ]
        assert [message.delivery_count for message in remaining] == [0] * 4, (
            "no message will be marked as a possible duplicate"
        )


@in_virtual_time
async def test_q19_dead_letters_wait_for_their_destination_and_the_report_says_why() -> None:
    async with with_dead_letters("1", "2") as app:
        resend = await send_again(app, wait_s=5)
        assert resend.moved == 0
        assert resend.waiting == {"orders": (2, "The messaging entity 'orders' could not be found.")}
        sending = asyncio.ensure_future(send_again(app, wait_s=30))
        await asyncio.sleep(5)
        await app.namespaces.primary.create_queue("orders")
        assert ((await sending).moved, (await sending).remaining) == (2, 0)
        messages = await app.namespaces.primary.messages("orders")
        assert [message.text for message in messages] == ["1", "2"]
        assert not any(DUPLICATE_MARK in message.properties for message in messages)


@pytest.mark.interpreted
@in_virtual_time
async def test_q04_a_dead_letter_whose_response_was_lost_is_marked_when_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with with_dead_letters("1") as app:
        await app.namespaces.primary.create_queue("orders")
        deliver, lost = MessageSender.deliver, 0

        async def lose_response(sender: MessageSender, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
            nonlocal lost
            await deliver(sender, *arguments, **options)
            if lost < 2:
                lost += 1
                raise ConnectionLost("the response was lost")

        monkeypatch.setattr(MessageSender, "deliver", lose_response)
        assert (await send_again(app, wait_s=0)).waiting == {"orders": (1, "the response was lost")}
        assert (await send_again(app)).moved == 1
        messages = await app.namespaces.primary.messages("orders")
        assert [DUPLICATE_MARK in message.properties for message in messages] == [False, True, True]


@pytest.mark.interpreted
@in_virtual_time
async def test_q04_a_dead_letter_in_flight_when_the_operator_gives_up_is_marked_later() -> None:
    async with with_dead_letters("1") as app:
        await app.namespaces.primary.create_queue("orders")
        app.namespaces.primary.outage.slow(5)
        sending = asyncio.ensure_future(send_again(app))
        await asyncio.sleep(22)
        sending.cancel()
        await asyncio.wait([sending])
        app.namespaces.primary.outage.restore()
        assert (await send_again(app)).moved == 1
        messages = await app.namespaces.primary.messages("orders")
        assert DUPLICATE_MARK in messages[-1].properties


@pytest.mark.interpreted
@in_virtual_time
async def test_q17_a_dead_letter_that_could_not_be_completed_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_dead_letters("1", "2") as app:
        await app.namespaces.primary.create_queue("orders")
        complete_batch, failed = MessageReceiver.complete_batch, 0

        async def lose_lock(receiver: MessageReceiver, messages: Sequence[BrokeredMessage]) -> None:
            nonlocal failed
            failed += 1
            if failed == 1:
                for message in messages:
                    await receiver.abandon(message)
                raise MessageLockLost("its lock is lost")
            await complete_batch(receiver, messages)

        monkeypatch.setattr(MessageReceiver, "complete_batch", lose_lock)
        assert (await send_again(app)).remaining == 0
        assert await app.arrived_bodies() == ["1", "2"]
        assert await dead_letters(app) == []


@in_virtual_time
async def test_q17_sending_dead_letters_again_does_not_displace_a_running_syphon() -> None:
    async with with_dead_letters("dead") as app:
        await app.namespaces.primary.create_queue("orders")
        started = len(app.events_of(EventKind.PUMP_STARTED))
        assert (await send_again(app)).moved == 1
        assert len(app.events_of(EventKind.PUMP_STARTED)) == started
        assert app.events_of(EventKind.PUMP_DISPLACED) == []
        app.pairing.mark_path_healthy("orders")
        await park(app, "parked")
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(60)
        assert await app.arrived_bodies() == ["dead", "parked"]


@in_virtual_time
async def test_q04_two_operators_send_no_dead_letter_twice_without_a_mark() -> None:
    async with with_dead_letters(*[str(number) for number in range(300)]) as app:
        await app.namespaces.primary.create_queue("orders")
        first = asyncio.ensure_future(send_again(app))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(send_again(app))
        await asyncio.wait([first, second])
        messages = await app.namespaces.primary.messages("orders")
        assert {message.text for message in messages} == {str(number) for number in range(300)}
        unmarked = [message.text for message in messages if DUPLICATE_MARK not in message.properties]
        assert len(unmarked) == len(set(unmarked))


@in_virtual_time
async def test_q19_a_dead_letter_locked_by_another_receiver_is_counted_and_waited_for() -> None:
    async with with_dead_letters("1", "2", "3") as app:
        path = app.backlog_path(0)
        async with app.pairing.secondary.create_message_receiver(f"{path}/$deadletterqueue", prefetch=0) as other:
            assert await other.receive() is not None  # not settled: the lock lasts a minute
        await app.namespaces.primary.create_queue("orders")
        resend = await send_again(app, counts={path: 3})
        assert (resend.moved, resend.not_received) == (2, 1)
        resend = await send_again(app, wait_s=100, counts={path: 1})
        assert (resend.moved, resend.not_received) == (1, 0)
