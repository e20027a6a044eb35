"""Q09: the parked time of a message is measured by the secondary's clock, and deducted from the time to live."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.client.connection.test_skewed_clocks import SkewedClock
from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.model.queue import QueueDescription
from twinbus.testing import InMemoryPair, in_virtual_time
from twinbus.testing.clock import WALL_MS, LoopClock
from twinbus.testing.namespace import InMemoryNamespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.paired_application import Application

SKEW_S: Final = 600
OPTIONS: Final[dict[str, Any]] = {
    "failover_interval": 0,
    "enable_syphon": True,
    "deduct_parked_time": True,
    "backlog_queue_count": 1,
}


class SkewedPair(InMemoryPair):
    """A pair in which the clocks of the primary, the secondary and the application are off by some seconds."""

    def __init__(self, *, primary_s: int = 0, secondary_s: int = 0, application_s: int = 0) -> None:
        super().__init__()
        self.primary, self.secondary = (
            InMemoryNamespace(name, clock=LoopClock(wall_ms=WALL_MS + 1000 * off_s))
            for name, off_s in (("contoso", primary_s), ("contoso-backup", secondary_s))
        )
        self.application_clock = SkewedClock(self.clock, 1000 * application_s)

    def factories(self, **options: Any) -> Any:  # noqa: ANN401
        return super().factories(clock=self.application_clock, **options)


@contextlib.asynccontextmanager
async def skewed_application(**clocks: int) -> AsyncIterator[Application]:
    async with SkewedPair(**clocks) as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **OPTIONS) as app:
            yield app


async def park(app: Application, *messages: BrokeredMessage) -> None:
    app.namespaces.primary.outage.stop()
    for message in messages:
        await app.queue_client().send(message)


async def restore_primary(app: Application) -> list[BrokeredMessage]:
    app.namespaces.primary.outage.restore()
    await asyncio.sleep(90)
    return await app.namespaces.primary.messages("orders")


@pytest.mark.parametrize("machine", ["primary_s", "secondary_s", "application_s"])
@pytest.mark.parametrize("off_s", [-SKEW_S, SKEW_S])
@in_virtual_time
async def test_q09_a_message_parked_for_seconds_does_not_expire_because_some_clock_is_wrong(
    machine: str, off_s: int
) -> None:
    async with skewed_application(**{machine: off_s}) as app:
        await park(app, *[BrokeredMessage(str(number), time_to_live=dt.timedelta(seconds=300)) for number in range(10)])
        await asyncio.sleep(40)
        messages = await restore_primary(app)
        assert app.events_of(EventKind.DEAD_LETTERED) == []
        assert [message.text for message in messages] == [str(number) for number in range(10)]
        for message in messages:
            parked_ms = message.properties["x-ms-parked-for-ms"]
            assert isinstance(parked_ms, int)
            assert 40_000 <= parked_ms <= 120_000
            assert message.properties["x-ms-parked-for"] == dt.timedelta(milliseconds=parked_ms)
            assert message.time_to_live == dt.timedelta(milliseconds=300_000 - parked_ms)


@in_virtual_time
async def test_q09_a_message_that_expired_while_parked_is_dead_lettered_despite_wrong_clocks() -> None:
    async with skewed_application(application_s=-SKEW_S, primary_s=-SKEW_S) as app:
        await park(
            app,
            BrokeredMessage("late", time_to_live=dt.timedelta(seconds=100)),
            BrokeredMessage("in time", time_to_live=dt.timedelta(seconds=1000)),
        )
        await asyncio.sleep(200)
        assert [message.text for message in await restore_primary(app)] == ["in time"]
        (event,) = app.events_of(EventKind.DEAD_LETTERED)
        assert str(event.reason).startswith("TTLExpiredException: it was parked for 2")


@in_virtual_time
async def test_q09_the_time_to_live_of_a_scheduled_message_starts_at_its_scheduled_time() -> None:
    """Both messages are parked for 10 minutes: one is due in an hour, the other was due 2 minutes ago."""
    async with skewed_application() as app:
        now = app.namespaces.clock.now()
        future, past = now + dt.timedelta(hours=1), now + dt.timedelta(minutes=8)
        await park(
            app,
            BrokeredMessage("future", time_to_live=dt.timedelta(seconds=300), scheduled_enqueue_time_utc=future),
            BrokeredMessage("past", time_to_live=dt.timedelta(seconds=300), scheduled_enqueue_time_utc=past),
        )
        await asyncio.sleep(600)
        by_text = {message.text: message for message in await restore_primary(app)}
        assert app.events_of(EventKind.DEAD_LETTERED) == []
        assert by_text["future"].time_to_live == dt.timedelta(minutes=5)
        assert by_text["future"].scheduled_enqueue_time_utc == future
        parked_ms = by_text["past"].properties["x-ms-parked-for-ms"]
        assert isinstance(parked_ms, int)
        assert parked_ms >= 600_000
        assert by_text["past"].time_to_live == dt.timedelta(milliseconds=300_000 - (parked_ms - 480_000))


@in_virtual_time
async def test_q06_q09_a_time_to_live_beyond_49_days_loses_the_parked_time_and_nothing_else() -> None:
    async with skewed_application(secondary_s=SKEW_S) as app:
        await park(app, BrokeredMessage("x", time_to_live=dt.timedelta(days=200)))
        await asyncio.sleep(3600)
        (message,) = await restore_primary(app)
        parked_ms = message.properties["x-ms-parked-for-ms"]
        assert isinstance(parked_ms, int)
        assert message.time_to_live == dt.timedelta(days=200) - dt.timedelta(milliseconds=parked_ms)


@in_virtual_time
async def test_r026_q09_the_parked_time_is_right_if_a_backlog_queue_has_another_lock_duration() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **OPTIONS | {"enable_syphon": False}) as app:
            await app.manager.delete_queue(app.backlog_path(0))
            await app.manager.create_queue(app.backlog_path(0), QueueDescription(lock_duration_ms=300_000))
        async with paired_application(namespaces, **OPTIONS) as app:
            await park(app, BrokeredMessage("x", time_to_live=dt.timedelta(seconds=150)))
            (message,) = await restore_primary(app)
            parked_ms = message.properties["x-ms-parked-for-ms"]
            assert isinstance(parked_ms, int)
            assert parked_ms < 90_000


@in_virtual_time
async def test_q09_the_parked_time_includes_the_time_for_which_the_syphon_held_a_message_back(
    waiting_state: str,
) -> None:
    async with skewed_application(secondary_s=-SKEW_S) as app:
        await park(app, BrokeredMessage("x", time_to_live=dt.timedelta(seconds=1000)))
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.busy("orders")
        await asyncio.sleep(200)
        assert {message.state for message in await app.parked_messages()} == {waiting_state}
        (message,) = await restore_primary(app)
        parked_ms = message.properties["x-ms-parked-for-ms"]
        assert isinstance(parked_ms, int)
        assert 200_000 <= parked_ms <= 300_000
        assert message.time_to_live == dt.timedelta(milliseconds=1_000_000 - parked_ms)


@in_virtual_time
async def test_q09_without_deduct_parked_time_the_full_time_to_live_is_restored() -> None:
    async with in_memory_pair_application(**OPTIONS | {"deduct_parked_time": False}) as app:
        await park(app, BrokeredMessage("x", time_to_live=dt.timedelta(seconds=30)))
        await asyncio.sleep(300)
        app.namespaces.primary.outage.restore()
        while not app.events_of(EventKind.MOVED):  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(0.5)
        (message,) = await app.namespaces.primary.messages("orders")
        assert message.time_to_live == dt.timedelta(seconds=30)
