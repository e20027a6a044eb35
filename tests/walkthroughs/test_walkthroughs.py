"""The walkthroughs in docs/design.md name the functions that are called, in the order in which they are called."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.call_trace import CallTrace, first_missing, walkthrough, walkthrough_branches
from tests.support.server_process import ServerProcess
from twinbus.client import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> CallTrace:
    folder = tmp_path / "trace"
    folder.mkdir()
    return CallTrace(folder)


@contextmanager
def run_traced_server(folder: Path, trace: CallTrace, *options: str, name: str = "contoso") -> Iterator[ServerProcess]:
    folder.mkdir()
    server = ServerProcess(folder, name=name, options=options, environment=trace.environment)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.kill()


async def test_send(tmp_path: Path, trace: CallTrace) -> None:
    with run_traced_server(tmp_path / "server", trace) as server:
        queue = server.create_queue()
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            sender = factory.create_message_sender(queue)
            await sender.send(BrokeredMessage("attaches the link"))
            start_ns = time.monotonic_ns()
            with trace.recording():
                await sender.send(BrokeredMessage("hello"))
    assert first_missing(walkthrough("Send"), trace.calls(start_ns)) is None


async def test_receive_and_settle(tmp_path: Path, trace: CallTrace) -> None:
    with run_traced_server(tmp_path / "server", trace) as server:
        queue = server.create_queue()
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            await factory.create_message_sender(queue).send(BrokeredMessage("hello"))
            receiver = factory.create_message_receiver(queue)
            start_ns = time.monotonic_ns()
            with trace.recording():
                message = await receiver.receive()
                assert message is not None
                await receiver.complete(message)
    assert first_missing(walkthrough("Receive and settle"), trace.calls(start_ns)) is None


async def test_paired_send_with_failover_and_return(tmp_path: Path, trace: CallTrace) -> None:
    with (
        run_traced_server(tmp_path / "primary", trace) as primary_server,
        run_traced_server(tmp_path / "secondary", trace, name="contoso-backup") as secondary_server,
    ):
        queue = primary_server.create_queue()
        primary = MessagingFactory.from_connection_string(primary_server.connection_string)
        manager = NamespaceManager.from_connection_string(
            secondary_server.admin_connection_string, ca_file=secondary_server.ca_file
        )
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary_server.connection_string),
            secondary_namespace_manager=manager,
            primary_namespace_name="contoso",
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
            backlog_queue_count=1,
            enable_syphon=True,
        )
        async with manager, await primary.pair_namespace(options) as pairing:
            client = primary.create_queue_client(queue)
            await client.send(BrokeredMessage("attaches the link"))
            is_restored = asyncio.Event()
            pairing.on_event(lambda _event: is_restored.set(), {EventKind.RESTORED})
            primary_server.kill()
            start_ns = time.monotonic_ns()
            with trace.recording():
                await client.send(BrokeredMessage("parked"))
                primary_server.start()
                await _receive_both(primary_server, queue)
                await is_restored.wait()  # the syphon does not wait for pings, and may be finished before the next ping
                await pairing.close()  # the syphon completes what it has sent
    calls = trace.calls(start_ns)
    for steps in walkthrough_branches("Paired send with failover and return"):
        assert first_missing(steps, calls) is None


async def _receive_both(server: ServerProcess, queue: str) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        receiver = factory.create_message_receiver(queue)
        for _ in range(2):
            message = await receiver.receive()
            assert message is not None
            await receiver.complete(message)


async def test_partitioned_send_over_processes(tmp_path: Path, trace: CallTrace) -> None:
    with run_traced_server(tmp_path / "server", trace, "--workers=2", "--stores=2") as server:
        queue = server.create_queue(EnablePartitioning="true")
        keys = {fragment_of(key.encode()) % 2: key for key in map(str, range(16))}
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            sender = factory.create_message_sender(queue)
            await sender.send(BrokeredMessage("attaches the link"))
            start_ns = time.monotonic_ns()
            for key in keys.values():  # one fragment belongs to the process that the client is not connected to
                await sender.send(BrokeredMessage("hello", partition_key=key))
    assert first_missing(walkthrough("Partitioned send over processes"), trace.calls(start_ns)) is None


def test_a_step_that_is_not_called_or_out_of_order_is_found() -> None:
    assert first_missing(["a", "b", "c"], ["a", "x", "b", "y", "c"]) is None
    assert first_missing(["a", "b", "c"], ["a", "c", "b"]) == "c"
    assert first_missing(["a", "b"], ["a"]) == "b"
