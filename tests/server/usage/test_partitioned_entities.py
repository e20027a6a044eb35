"""The same calls cost the same on a plain and on a partitioned queue of a server with two processes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from tests.server.usage.usage_totals import nonzero_counts
from tests.support.multi_process_server import connect_client, run_multi_process_server
from tests.support.partitioned_namespace import key_for_fragment, numbered_messages, one_per_fragment, receive
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.usage import (
    UsageRow,
    add_rows,
    document_operations,
    journals_without_parquet,
    operations,
    read_journal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client import MessagingFactory


async def test_r084_c04_sends_and_receives_of_a_partitioned_queue_cost_the_same_as_of_a_plain_queue(
    tmp_path: Path,
) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queues = {kind: server.create_queue(EnablePartitioning=kind, LockDuration="PT1M") for kind in ("false", "true")}
        async with connect_client(server) as factory:
            for queue in queues.values():
                await _use(factory, queue)
        server.stop()
    rows = [row for path in journals_without_parquet(tmp_path / "data" / "usage") for _, row in read_journal(path)]
    plain, partitioned = (_total(rows, queue) for queue in queues.values())
    assert nonzero_counts(plain, excluded=["receive_bytes"]) == nonzero_counts(
        partitioned, excluded=["receive_bytes"]
    )  # a different message is received twice
    assert (operations(plain), document_operations(plain)) == (
        operations(partitioned),
        document_operations(partitioned),
    )
    assert (plain.sends, plain.send_units, plain.receives, plain.settlements) == (51, 52, 53, 51), "see `_use`"


async def _use(factory: MessagingFactory, queue: str) -> None:
    """Make every kind of call on messages of all fragments: 51 are sent, and two are received twice."""
    client = factory.create_queue_client(queue)
    for message in [*one_per_fragment(), *numbered_messages(16)]:
        await client.send(message)
    await client.send_batch(one_per_fragment())
    await client.send(BrokeredMessage(b"x" * 130_000))
    locked = await receive(client, 49)
    first, second, third, *others = locked
    await client.renew_lock(first)
    await client.abandon(first)
    await client.defer(second)
    await client.dead_letter(third, "why")
    for message in [*others, *await receive(client, 1)]:
        await client.complete(message)
    deferred = await client.receive_deferred(second.sequence_number)
    await client.complete(deferred[0])
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    number = await client.schedule(BrokeredMessage("later", partition_key=key_for_fragment(3)), later)
    await client.cancel_scheduled(number)
    await client.peek_batch(10)
    eager = factory.create_queue_client(queue, ReceiveMode.RECEIVE_AND_DELETE)
    await client.send_batch(numbered_messages(2))
    await receive(eager, 2)
    assert await client.receive(timeout=0.1) is None


def _total(rows: list[UsageRow], entity: str) -> Any:  # noqa: ANN401  # a row of usage
    return add_rows([row for row in rows if row.entity == entity])
