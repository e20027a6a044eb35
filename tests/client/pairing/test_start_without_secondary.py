"""Q15, `require_secondary=False`: an application starts at once, whether the secondary is available or not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paired_application import Application, paired_application
from twinbus.client import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.client.errors import ObjectClosed
from twinbus.client.pairing import AlarmKind, EventKind, NotSent, PairingFailed, SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.backlog import preparation
from twinbus.client.sync import MessagingFactory as SyncMessagingFactory
from twinbus.client.sync import NamespaceManager as SyncNamespaceManager
from twinbus.client.sync.pairing import SendAvailabilityPairedNamespaceOptions as SyncOptions
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

LIMIT_S = 20.0


@contextlib.asynccontextmanager
async def unprotected(kind: str = "hang", **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401  # options of the pairing or of both factories
    """An application that has paired while its secondary is unavailable."""
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        getattr(namespaces.secondary.outage, kind)()
        all_options = {"failover_interval": 0, "require_secondary": False, "operation_timeout": LIMIT_S} | options
        async with paired_application(namespaces, **all_options) as app:
            yield app


@pytest.mark.parametrize("kind", ["hang", "stop"])
@in_virtual_time
async def test_q15_pairing_returns_at_once_if_the_secondary_is_silent_or_down(kind: str) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    async with unprotected(kind) as app:
        assert loop.time() == started_s
        assert not app.pairing.is_protected
        await app.queue_client().send(BrokeredMessage("apples"))
        assert await app.arrived_bodies() == ["apples"]
        assert loop.time() - started_s < 1


@pytest.mark.parametrize("kind", ["hang", "stop"])
@in_virtual_time
async def test_q15_status_alarm_and_events_say_when_a_pair_is_unprotected_and_protected_again(
    kind: str,
) -> None:
    async with unprotected(kind) as app:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        status = await app.pairing.status()
        assert loop.time() - started_s < 5
        assert not status.is_protected
        assert [alarm.kind for alarm in status.alarms] == [AlarmKind.UNPROTECTED]
        assert len(app.events_of(EventKind.UNPROTECTED)) == 1
        await asyncio.sleep(120)
        assert len(app.events_of(EventKind.UNPROTECTED)) == 1, (
            "there is one event, however often the preparation is tried"
        )
        app.namespaces.secondary.outage.restore()
        await asyncio.sleep(60)
        status = await app.pairing.status()
        assert (status.is_protected, status.alarms, len(status.backlog_queues)) == (True, (), 3)
        assert len(app.events_of(EventKind.PROTECTED)) == 1


@in_virtual_time
async def test_q15_a_healthy_secondary_that_is_being_prepared_raises_no_alarm() -> None:
    async with InMemoryPair() as namespaces, paired_application(namespaces, require_secondary=False) as app:
        status = await app.pairing.status()
        assert (status.is_protected, status.alarms) == (True, ())
        assert [event.kind for event in app.events] == [EventKind.PROTECTED]
        assert app.pairing.backlog_queue_count == app.pairing.options.backlog_queue_count == 3


@in_virtual_time
async def test_q15_a_send_that_has_to_be_parked_waits_for_the_first_preparation() -> None:
    async with unprotected() as app:
        app.namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(LIMIT_S / 2)
        assert not sending.done()
        app.namespaces.secondary.outage.restore()
        await sending
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_q15_a_send_waits_within_its_timeout_and_sends_after_the_preparation_do_not_wait() -> None:
    async with unprotected() as app:
        app.namespaces.primary.outage.stop()
        queue, loop = app.queue_client(), asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(NotSent, match="are not prepared yet"):
            await queue.send(BrokeredMessage("apples"), timeout=5)
        assert loop.time() - started_s == pytest.approx(5, abs=0.1)
        await asyncio.sleep(LIMIT_S)  # the first preparation has failed by now
        started_s = loop.time()
        with pytest.raises(NotSent, match=rf"was not prepared within {LIMIT_S:g} s"):
            await queue.send(BrokeredMessage("pears"))
        assert loop.time() - started_s < 1


@in_virtual_time
async def test_q15_messages_are_spooled_until_the_secondary_is_available(tmp_path: Path) -> None:
    async with unprotected(spool_dir=tmp_path, enable_syphon=True) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        assert app.pairing.spool_status is not None
        assert app.pairing.spool_status.count == 1
        app.namespaces.secondary.outage.restore()
        await asyncio.sleep(60)
        assert app.pairing.syphon is not None
        assert [message.text for message in await app.parked_messages()] == ["apples"]
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert await app.arrived_bodies() == ["apples"]


@pytest.mark.parametrize("after_s", [0, 1, LIMIT_S + 1])
@in_virtual_time
async def test_q15_closing_while_the_secondary_is_prepared_leaves_nothing_behind(after_s: float) -> None:
    tasks_before = asyncio.all_tasks()
    async with unprotected() as app:
        app.namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples"), timeout=600))
        await asyncio.sleep(after_s)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await app.pairing.close()
        assert loop.time() - started_s < 5
        with pytest.raises((NotSent, ObjectClosed)):
            await sending
        leftover_tasks = {task for task in asyncio.all_tasks() - tasks_before if "preparation" in repr(task)}
        assert leftover_tasks == set()
    await asyncio.sleep(60)


@in_virtual_time
async def test_q15_a_required_secondary_that_is_silent_fails_the_call_within_the_operation_timeout() -> None:
    async with InMemoryPair() as namespaces:
        primary, secondary = namespaces.factories(operation_timeout=LIMIT_S)
        string = namespaces.secondary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager, backlog_queue_count=1
            )
            namespaces.secondary.outage.hang()
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            with pytest.raises(PairingFailed, match="was not prepared within 20 s"):
                await primary.pair_namespace(options)
            assert loop.time() - started_s == pytest.approx(LIMIT_S, abs=0.1)
            pairing = asyncio.ensure_future(primary.pair_namespace(options))
            await asyncio.sleep(1)
            pairing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pairing
            assert primary.pairing is None
            namespaces.secondary.outage.restore()
            async with await primary.pair_namespace(options) as paired_again:
                assert (paired_again.is_protected, paired_again.backlog_queue_count) == (True, 1)


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def connection_string_for(port: int) -> str:
    key = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
    return f"Endpoint=sb://127.0.0.1:{port};{key};UseDevelopmentEmulator=true"


async def test_q15_pairing_returns_at_once_with_a_secondary_behind_a_silent_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "UNPROTECTED_AFTER_S", 0.2)
    loop = asyncio.get_running_loop()
    with silent_port() as primary_port, silent_port() as secondary_port:
        primary, secondary = (
            MessagingFactory.from_connection_string(connection_string_for(port))
            for port in (primary_port, secondary_port)
        )
        async with (
            primary,
            secondary,
            NamespaceManager.from_connection_string(connection_string_for(secondary_port)) as manager,
        ):
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary,
                secondary_namespace_manager=manager,
                primary_namespace_name="contoso",
                require_secondary=False,
            )
            started_s = loop.time()
            async with await primary.pair_namespace(options) as pairing:
                assert loop.time() - started_s < 0.2
                status = await pairing.status()
                assert (status.is_protected, len(status.alarms)) == (False, 1)
            assert loop.time() - started_s < 2, "closing does not wait for the secondary either"


def test_q15_the_blocking_client_returns_at_once_too() -> None:
    with silent_port() as primary_port, silent_port() as secondary_port:
        primary, secondary = (
            SyncMessagingFactory.from_connection_string(connection_string_for(port))
            for port in (primary_port, secondary_port)
        )
        with (
            primary,
            secondary,
            SyncNamespaceManager.from_connection_string(connection_string_for(secondary_port)) as manager,
        ):
            options = SyncOptions(
                secondary_factory=secondary,
                secondary_namespace_manager=manager,
                primary_namespace_name="contoso",
                require_secondary=False,
            )
            with primary.pair_namespace(options) as pairing:
                assert not pairing.is_protected
