"""Usage written by real servers: at a clean stop, by several processes, and after the rollup."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import ServerProcess, run_server, wait_until
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.model.usage import (
    BEGIN,
    END,
    NO_ENTITY,
    JournalHead,
    UsageRow,
    journals_without_parquet,
    read_journal,
    write_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORT_MINUTES = "import twinbus.server.usage.writer as clerk; clerk.MINUTE_S = 1\n"
"""Executed by every interpreter that starts: a minute takes one second."""


def rows_of(folder: Path) -> list[tuple[JournalHead, UsageRow]]:
    return [pair for path in journals_without_parquet(folder / "data" / "usage") for pair in read_journal(path)]


def marks(folder: Path) -> list[str]:
    return [row.mark for _, row in rows_of(folder) if row.mark]


@contextmanager
def run_with_short_minutes(folder: Path, *options: str) -> Iterator[ServerProcess]:
    """Run a server whose minutes take one second."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SHORT_MINUTES)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = ServerProcess(folder, options=options, environment={**os.environ, "PYTHONPATH": path})
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def send(server: ServerProcess, queue: str, count: int) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(queue)
        for number in range(count):
            await sender.send(BrokeredMessage(str(number)))


def test_a_clean_stop_writes_the_current_minute_and_an_end_mark(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        queue = server.create_queue()
        asyncio.run(send(server, queue, 10))
    rows = rows_of(tmp_path)
    assert marks(tmp_path) == [BEGIN, END]
    (sent,) = [row for _, row in rows if row.sends]
    assert (sent.entity, sent.sends, sent.send_units) == (queue, 10, 10)
    assert sent.client.startswith("twinbus-"), "our client says who it is"
    (created,) = [row for _, row in rows if row.management]
    assert (created.entity, created.client, created.management) == (queue, server.key_name, 1)
    assert max(row.connections for _, row in rows if row.entity == NO_ENTITY) == 1
    assert {head.namespace for head, _ in rows} == {"contoso"}


def test_journals_of_an_earlier_process_are_converted_by_the_next_one(tmp_path: Path) -> None:
    usage = tmp_path / "data" / "usage"
    with run_with_short_minutes(tmp_path) as server:
        server.stop()
        head = JournalHead(namespace="contoso", process=3, life="gone", hour=1_700_000_000 // 3600 * 3600)
        (usage / head.journal_name).write_bytes(
            write_frame(head) + write_frame([UsageRow(minute=head.hour, entity="orders", client="shop", sends=7)])
        )
        server.start()
        wait_until((usage / head.parquet_path).exists)
        wait_until(lambda: not (usage / head.journal_name).exists())
        server.stop()
    table = pq.read_table(usage / head.parquet_path, partitioning=None)
    assert table["sends"].to_pylist() == [7]
    assert not list(usage.rglob("*.unreadable"))


def test_each_of_several_processes_counts_its_own_clients(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--stores=2", workers=2) as server:
        queue = server.create_queue()
        headers = {"Authorization": server.token("")}
        server.request("PUT", "source", _forwarding_queue(queue), expected=201, headers=headers)
        server.request_each("POST", f"{queue}/messages", "x", expected=201)
        asyncio.run(send(server, "source", 5))
        wait_until(lambda: server.message_counts(queue)[0] == 7)
    rows = rows_of(tmp_path)
    assert {head.process for head, _ in rows} == {0, 1}
    assert marks(tmp_path) == [BEGIN, END] * 2
    assert [sum(row.sends for head, row in rows if (head.process, row.entity) == (n, queue)) for n in (0, 1)] == [1, 1]
    (forwarded,) = [row for _, row in rows if row.forwards]
    assert (forwarded.entity, forwarded.client, forwarded.forwards) == ("source", "", 5)


def test_without_metering_nothing_is_written(tmp_path: Path) -> None:
    with run_server(tmp_path, "--no-metering") as server:
        asyncio.run(send(server, server.create_queue(), 1))
    assert not (tmp_path / "data" / "usage").exists()


def _forwarding_queue(target: str) -> str:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        f"<ForwardTo>{target}</ForwardTo></QueueDescription></content></entry>"
    )
