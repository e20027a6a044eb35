"""The totals on the metrics page equal a ledger of messages, under load and after a worker's death.

The ledger has the ids of all messages that were received in the end: every stored message is received at least once,
because it stays until it is completed.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.server.api.metrics_reader import Metrics
from tests.support.multi_process_server import run_multi_process_server
from twinbus.client import BrokeredMessage, MessagingFactory, ReceiveMode, RetryPolicy
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.multi_process_server import MultiProcessServer

ROUNDS = 8
SCRAPE_INTERVAL_S = 0.1
BATCH = 5


@pytest.fixture
def two_own_workers(tmp_path: Path) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(tmp_path, workers=2) as server:
        yield server


class Ledger:
    """The messages of one queue, by id."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        """Messages whose send was confirmed."""
        self.received: set[str] = set()


def scrape_on(server: MultiProcessServer, connection: http.client.HTTPConnection) -> Metrics:
    return Metrics(server.request_on(connection, "GET", "$api/v1/metrics", expected=200))


async def send_and_receive(factory: MessagingFactory, queue: str, ledger: Ledger) -> None:
    """Send batches of messages and complete some; failures are expected while a worker is down."""
    client = factory.create_queue_client(queue)
    for number in range(ROUNDS):
        ids = [f"{queue}-{number}-{part}" for part in range(BATCH)]
        try:
            await client.send_batch([BrokeredMessage("x", message_id=one) for one in ids])
            ledger.confirmed |= set(ids)
            for message in await client.receive_batch(BATCH - 2, 0.2):
                ledger.received.add(str(message.message_id))
                await client.complete(message)
        except ServiceBusError:
            await asyncio.sleep(0)


async def drain(factory: MessagingFactory, queue: str, ledger: Ledger) -> None:
    """Receive all messages that are left."""
    client = factory.create_queue_client(queue, ReceiveMode.RECEIVE_AND_DELETE)
    while messages := await client.receive_batch(100, 0.2):
        ledger.received |= {str(message.message_id) for message in messages}


def factory_of(server: MultiProcessServer) -> MessagingFactory:
    return MessagingFactory.from_connection_string(
        server.connection_string, retry_policy=RetryPolicy(max_retries=2), operation_timeout=5
    )


async def test_totals_equal_the_ledger_of_messages_sent_and_received(two_workers: MultiProcessServer) -> None:
    server = two_workers
    ledgers = {server.create_queue(): Ledger() for _ in range(3)}
    ledgers[server.create_queue(EnablePartitioning="true")] = Ledger()
    async with factory_of(server) as factory, asyncio.TaskGroup() as tasks:
        for queue, ledger in ledgers.items():
            tasks.create_task(send_and_receive(factory, queue, ledger))
    for page in server.request_each("GET", "$api/v1/metrics", expected=200).values():
        metrics = Metrics(page)
        for queue, ledger in ledgers.items():
            assert metrics.value("twinbus_enqueued_messages_total", entity=queue) == len(ledger.confirmed)
            assert metrics.value("twinbus_removed_messages_total", entity=queue) == len(ledger.received)
            left = len(ledger.confirmed) - len(ledger.received)
            assert metrics.value("twinbus_messages", entity=queue, state="active") == left > 0


async def test_totals_never_fall_and_equal_the_ledger_after_a_worker_died(
    two_own_workers: MultiProcessServer,
) -> None:
    server = two_own_workers
    ledgers = {server.create_queue(): Ledger() for _ in range(4)}
    seen: dict[str, list[float]] = {queue: [] for queue in ledgers}

    def note(metrics: Metrics) -> None:
        for queue, values in seen.items():
            value = metrics.value("twinbus_enqueued_messages_total", entity=queue)
            assert value is not None, f"the totals of {queue} are missing"
            values.append(value)

    with server.connect_to_each() as connections:
        alive = connections[0]
        note(await asyncio.to_thread(scrape_on, server, alive))
        async with factory_of(server) as factory:
            load = [asyncio.ensure_future(send_and_receive(factory, *entry)) for entry in ledgers.items()]
            while min(len(ledger.confirmed) for ledger in ledgers.values()) < 2 * BATCH:
                assert not all(task.done() for task in load)
                await asyncio.wait(load, timeout=SCRAPE_INTERVAL_S)
                note(await asyncio.to_thread(scrape_on, server, alive))
            pid = server.signal_worker(1, signal.SIGKILL)
            while (await asyncio.wait(load, timeout=SCRAPE_INTERVAL_S))[1]:
                note(await asyncio.to_thread(scrape_on, server, alive))
            await asyncio.gather(*load)
        await asyncio.to_thread(server.wait_for_replacement, 1, pid)
        await asyncio.to_thread(server.wait_until_healthy)
        async with factory_of(server) as factory:
            for queue, ledger in ledgers.items():
                await drain(factory, queue, ledger)
        note(await asyncio.to_thread(scrape_on, server, alive))
    for queue, values in seen.items():
        assert values == sorted(values)
        assert ledgers[queue].confirmed <= ledgers[queue].received
    for page in server.request_each("GET", "$api/v1/metrics", expected=200).values():  # one process is new
        metrics = Metrics(page)
        for queue, ledger in ledgers.items():
            assert metrics.value("twinbus_enqueued_messages_total", entity=queue) == len(ledger.received)
            assert metrics.value("twinbus_removed_messages_total", entity=queue) == len(ledger.received)
            assert metrics.value("twinbus_messages", entity=queue, state="active") == 0
