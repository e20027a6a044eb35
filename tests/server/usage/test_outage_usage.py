"""C07: a real outage of a real pair, as its servers have metered it: exactly the operations that are predicted."""

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


def metered(folder: Path) -> UsageRow:
    """In all lives of a server: what is in journals, and what a later life has made a Parquet file of."""
    usage = folder / "data" / "usage"
    rows = [row for path in journals_without_parquet(usage) for _, row in read_journal(path)]
    for path in usage.rglob("*.parquet"):
        rolled = pq.read_table(path, columns=list(COUNTS), partitioning=None).to_pylist()
        rows += [UsageRow(minute=0, **found) for found in rolled]
    return add_rows(rows)


async def go_through_an_outage(primary: ServerProcess, secondary: ServerProcess) -> Prediction:
    async with AsyncExitStack() as stack:
        ours, theirs = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(one.connection_string))
            for one in (primary, secondary)
        ]
        manager = await stack.enter_async_context(
            NamespaceManager.from_connection_string(secondary.admin_connection_string, ca_file=secondary.ca_file)
        )
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=theirs,
            secondary_namespace_manager=manager,
            backlog_queue_count=QUEUES,
            failover_interval=0,
            ping_primary_interval=1,
            primary_namespace_name="contoso",
        )
        pairing = await ours.pair_namespace(options)
        stack.push_async_callback(pairing.close)
        primary.stop()
        await park_messages(ours, clients=50, each=MESSAGES // 50)
        prediction = await predict_operations(pairing, manager, MESSAGES)
        primary.start()
        await wait_until_restored(pairing)
        others = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(one.connection_string))
            for one in (primary, secondary)
        ]
        await drain_with_pumps(others[0], others[1], manager, pairing, MESSAGES)
        assert await receive_all(others[0]) == MESSAGES
        return prediction


async def test_c07_a_thousand_messages_of_a_real_outage_are_exactly_as_many_operations_as_predicted(
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
        prediction = await go_through_an_outage(primary, secondary)
        primary.stop()
        secondary.stop()
    finally:
        primary.kill()
        secondary.kill()
    rows = [metered(folder) for folder in folders]
    made, asked = 1, QUEUES  # the queue, by the test; how full backlog queues are, to predict
    assert prediction.documented_operations == 4 * MESSAGES + 2 + prediction.empty_queues
    assert prediction.operations == 6 * MESSAGES + 2 + prediction.empty_queues + 1 + 2 * QUEUES
    assert sum(map(document_operations, rows)) == prediction.documented_operations
    assert sum(map(operations, rows)) == prediction.operations + made + asked
