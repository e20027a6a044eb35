"""C07: the servers of a real pair meter exactly the predicted operations of a real outage."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.server.usage.parked_message_costs import (
    drain_with_pumps,
    park_messages,
    predict_operations,
    receive_all,
    wait_until_restored,
)
from tests.support.server_process import ServerProcess
from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.model.usage import (
    COUNTS,
    UsageRow,
    add_rows,
    document_operations,
    journals_without_parquet,
    operations,
    read_journal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.usage.parked_message_costs import Prediction

QUEUES = 10
MESSAGES = 1_000


def total_usage_of(folder: Path) -> UsageRow:
    """The total usage of all starts of a server: journals, and the Parquet files that a later start made of them."""
    usage = folder / "data" / "usage"
    rows = [row for path in journals_without_parquet(usage) for _, row in read_journal(path)]
    for path in usage.rglob("*.parquet"):
        converted = pq.read_table(path, columns=list(COUNTS), partitioning=None).to_pylist()
        rows += [UsageRow(minute=0, **counts) for counts in converted]
    return add_rows(rows)


async def run_outage(primary: ServerProcess, secondary: ServerProcess) -> Prediction:
    async with AsyncExitStack() as stack:
        primary_factory, secondary_factory = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(server.connection_string))
            for server in (primary, secondary)
        ]
        manager = await stack.enter_async_context(
            NamespaceManager.from_connection_string(secondary.admin_connection_string, ca_file=secondary.ca_file)
        )
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary_factory,
            secondary_namespace_manager=manager,
            backlog_queue_count=QUEUES,
            failover_interval=0,
            ping_primary_interval=1,
            primary_namespace_name="contoso",
        )
        pairing = await primary_factory.pair_namespace(options)
        stack.push_async_callback(pairing.close)
        primary.stop()
        await park_messages(primary_factory, clients=50, each=MESSAGES // 50)
        prediction = await predict_operations(pairing, manager, MESSAGES)
        primary.start()
        await wait_until_restored(pairing)
        new_factories = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(server.connection_string))
            for server in (primary, secondary)
        ]
        await drain_with_pumps(new_factories[0], new_factories[1], manager, pairing, MESSAGES)
        assert await receive_all(new_factories[0]) == MESSAGES
        return prediction


async def test_c07_a_real_outage_of_a_thousand_messages_takes_the_predicted_operations(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "primary", tmp_path / "secondary"]
    for folder in folders:
        folder.mkdir()
    primary, secondary = ServerProcess(folders[0]), ServerProcess(folders[1], name="contoso-backup")
    try:
        primary.start()
        secondary.start()
        primary.create_entity("orders", "QueueDescription")
        prediction = await run_outage(primary, secondary)
        primary.stop()
        secondary.stop()
    finally:
        primary.kill()
        secondary.kill()
    rows = [total_usage_of(folder) for folder in folders]
    created, counted = 1, QUEUES  # calls of the test: creating the queue, and counting the messages of backlog queues
    assert prediction.documented_operations == 4 * MESSAGES + 2 + prediction.empty_queues
    assert prediction.operations == 6 * MESSAGES + 2 + prediction.empty_queues + 1 + 2 * QUEUES
    assert sum(map(document_operations, rows)) == prediction.documented_operations
    assert sum(map(operations, rows)) == prediction.operations + created + counted
