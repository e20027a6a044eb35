"""If the secondary or a backlog queue is unavailable when it is needed, the caller learns the outcome of the send."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import pair_status
from tests.support.in_process_server import run_server_in_process
from tests.support.server_pair import (
    OPERATION_TIMEOUT_S,
    QUEUE,
    connect_manager,
    connection_string,
    create_queue,
    paired_application,
    receive_all_texts,
    run_server_pair,
)
from tests.support.server_process import run_server
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import EntityState, EventKind, NotSent, PairingFailed
from twinbus.client.pairing.backlog import preparation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer
    from tests.support.server_process import ServerProcess

MEGABYTE = 1_048_576
SIZE = 250_000


async def test_with_both_namespaces_down_the_error_says_that_the_message_was_not_sent_and_why(tmp_path: Path) -> None:
    both = run_server_pair(tmp_path)
    async with both as (primary, secondary), paired_application(primary, secondary, backlog_queue_count=3) as app:
        await app.send("before")
        primary.kill()
        secondary.kill()
        await app.wait_until(lambda: not (app.factory.is_connected or app.pairing.secondary.is_connected))
        with pytest.raises(NotSent) as raised:
            await app.send("apples")
        text = str(raised.value)
        assert text.startswith("the message for 'orders' was not sent. the primary: ")
        assert text.count("cannot be reached") == 2, "a reason that all backlog queues share appears once"
        queues = {f"contoso/x-servicebus-transfer/{index}" for index in range(3)}
        assert set(text.rsplit("; ", maxsplit=1)[-1].partition(": ")[0].split(", ")) == queues
        assert raised.value.backlog.keys() == queues
        await asyncio.to_thread(secondary.start)
        await app.send("pears")
        assert await app.parked_texts() == ["pears"]
        assert len(app.events_of(EventKind.QUEUE_OUT)) == 3
        async with asyncio.timeout(10):
            # A report from before the send to the restarted secondary still names all three.
            while "does not use 2 of its 3 backlog queues: 127." not in (shown := await _status_on_one_line(secondary)):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.1)
        assert shown.count("does not use") == 1, "the same reason is shown once"


async def test_x08_with_both_namespaces_down_and_a_spool_sends_are_spooled_and_all_arrive(tmp_path: Path) -> None:
    names = [f"{number:02}" for number in range(40)]
    async with run_server_pair(tmp_path) as (primary, secondary):
        spool_dir = tmp_path / "spool"
        async with paired_application(primary, secondary, spool_dir=spool_dir, enable_syphon=True) as app:
            await app.send("before")
            primary.kill()
            secondary.kill()
            for name in names[:30]:
                await app.queue.send(BrokeredMessage(name, message_id=name, session_id="apples"))
            assert [event.message_id for event in app.events_of(EventKind.SPOOLED)] == names[:30]
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.count == 30
        # The application closes while both are down; the next one finds its spooled messages, and adds to them.
        restarted = paired_application(
            primary, secondary, spool_dir=spool_dir, enable_syphon=True, require_secondary=False
        )
        async with restarted as app:
            for name in names[30:]:
                await app.queue.send(BrokeredMessage(name, message_id=name, session_id="apples"))
            await asyncio.gather(*[asyncio.to_thread(server.start) for server in (primary, secondary)])
            await app.wait_for_event(EventKind.UNSPOOLED, len(names))
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.count == 0
            assert set(await receive_all_texts(primary, len(names) + 1)) == {"before", *names}


async def test_with_both_namespaces_silent_a_send_fails_within_the_operation_timeout(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary), paired_application(primary, secondary) as app:
        await app.send("before")
        primary.pause()
        secondary.pause()
        with pytest.raises(NotSent, match=r"the primary: .* took longer than 2 s: it may have been stored; contoso/"):
            async with asyncio.timeout(OPERATION_TIMEOUT_S + 1.5):
                await app.send("apples")
        primary.resume()
        secondary.resume()


async def test_an_outage_of_the_secondary_alone_affects_no_send(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, enable_syphon=True) as app,
    ):
        secondary.kill()
        await app.send("apples")
        assert app.is_in(EntityState.HEALTHY)
        await asyncio.to_thread(secondary.start)
        primary.kill()
        await app.send("pears")
        await asyncio.to_thread(primary.start)
        await app.wait_for_event(EventKind.MOVED)
        assert await receive_all_texts(primary, 2) == ["apples", "pears"]


async def test_pairing_while_the_secondary_is_down_fails_and_can_be_repeated(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        secondary.kill()
        with pytest.raises(PairingFailed, match=r"backlog queues of the secondary cannot be listed: .*cannot be"):
            async with paired_application(primary, secondary):
                pytest.fail("the pairing did not fail")
        await asyncio.to_thread(secondary.start)
        async with paired_application(primary, secondary) as app:
            assert app.pairing.is_protected


async def test_an_application_can_start_unprotected_and_is_protected_with_the_secondary_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "RETRY_S", 0.3)
    async with run_server_pair(tmp_path) as (primary, secondary):
        secondary.kill()
        async with paired_application(primary, secondary, require_secondary=False) as app:
            assert not app.pairing.is_protected
            await app.send("apples")
            primary.kill()
            await app.wait_until(lambda: not app.factory.is_connected)
            with pytest.raises(NotSent, match=r"was not sent\. the primary: "):
                await app.send("pears")
            await asyncio.to_thread(secondary.start)
            await app.wait_for_event(EventKind.PROTECTED)
            await app.send("plums")
            assert await app.parked_texts() == ["plums"]


async def test_backlog_queues_that_are_deleted_are_created_again(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, enable_syphon=True) as app,
    ):
        primary.kill()
        await app.send("apples")
        async with connect_manager(secondary) as manager:
            for queue in app.pairing.rotation.queues:
                await manager.delete_queue(queue.path)
        with contextlib.suppress(NotSent):  # unless one queue was created again before the other was tried
            await app.send("pears")
        await app.wait_for_event(EventKind.QUEUE_BACK)
        await app.send("plums")
        assert app.events_of(EventKind.PARKED)[-1].message_id == "plums"
        await asyncio.to_thread(primary.start)
        await app.wait_for_event(EventKind.MOVED)
        assert "plums" in [event.message_id for event in app.events_of(EventKind.MOVED)]


@contextlib.asynccontextmanager
async def with_small_backlog_queues(folder: Path) -> AsyncIterator[tuple[str, InProcessServer]]:
    """The connection string of an unreachable primary, and a secondary with backlog queues of one megabyte."""
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    with run_server(folder / "one") as primary, run_server_in_process(folder / "other") as secondary:
        await create_queue(primary, QUEUE)
        for index in range(2):
            path = f"contoso/x-servicebus-transfer/{index}"
            await create_queue(secondary, path)
            object.__setattr__(secondary.namespace.find(path).description, "max_size_mb", 1)
        yield connection_string(primary, port=1), secondary


async def test_q11_a_full_backlog_queue_counts_as_failed_and_another_is_used_until_all_are_full(tmp_path: Path) -> None:
    async with with_small_backlog_queues(tmp_path) as (unreachable, secondary):
        factory = MessagingFactory.from_connection_string(unreachable, operation_timeout=OPERATION_TIMEOUT_S)
        async with paired_application(secondary, secondary, factory=factory) as app:
            sent = 2 * (MEGABYTE // SIZE)
            for _ in range(sent):
                await app.queue.send(BrokeredMessage(b"x" * SIZE))
            with pytest.raises(NotSent) as raised:
                await app.queue.send(BrokeredMessage(b"x" * SIZE))
            assert str(raised.value).count("maximum entity size") == 2
            out = [event.backlog_queue for event in app.events_of(EventKind.QUEUE_OUT)]
            assert sorted(filter(None, out)) == [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
            assert len(app.events_of(EventKind.PARKED)) == sent


async def _status_on_one_line(secondary: ServerProcess) -> str:
    """The output of `twinbus pair status`, on one line."""
    return " ".join((await pair_status(secondary)).split())
