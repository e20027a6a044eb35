"""`twinbus pair drain` brings parked messages back without the application."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from tests.support.in_process_server import run_server_in_process
from tests.support.server_pair import connection_string, create_queue, paired_application
from tests.support.server_process import ServerProcess
from twinbus.cli.main import app
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def drain(primary: ServerProcess, secondary: ServerProcess, *options: str) -> Result:
    strings = (primary.tls_connection_string, connection_string(secondary), secondary.admin_connection_string)
    trusted = ["--ca-file", primary.ca_file, "--ca-file", secondary.ca_file]
    return CliRunner().invoke(app, ["pair", "drain", *strings, *trusted, *options], prog_name="twinbus")


async def park(primary: ServerProcess, secondary: ServerProcess, count: int) -> list[int]:
    """Park messages in two backlog queues during an outage, and return the number of messages in each."""
    paths = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
    async with paired_application(primary, secondary, backlog_queue_count=2) as program:
        await create_queue(primary, "orders")
        primary.kill()
        for number in range(count):
            client = program.factory.create_queue_client("orders")  # each client chooses its own backlog queue
            await client.send(BrokeredMessage(f"order {number}"))
    return [secondary.message_counts(path)[0] for path in paths]


def drain_while_parking(primary: ServerProcess, secondary: ServerProcess, *options: str) -> tuple[Result, int]:
    """Drain while an application parks more messages; return the result and the number of those messages."""
    ended = threading.Event()

    async def keep_parking() -> int:
        async with paired_application(primary, secondary, backlog_queue_count=1) as program:
            for number in range(20):
                if ended.is_set():
                    return number
                await program.send(f"another order {number}")
                await asyncio.sleep(0.4)
        raise AssertionError("the drain has not ended: it takes newly parked messages for progress")

    with ThreadPoolExecutor(1) as pool:
        parking = pool.submit(asyncio.run, keep_parking())
        result = drain(primary, secondary, *options)
        ended.set()
        return result, parking.result()


def test_q20_drain_extra_moves_the_queues_from_the_count_on_and_drain_reports_what_is_left(tmp_path: Path) -> None:
    for name in ("primary", "secondary"):
        (tmp_path / name).mkdir()
    primary = ServerProcess(tmp_path / "primary")
    primary.start()
    try:
        with run_server_in_process(tmp_path / "secondary") as secondary:
            usual, extra = asyncio.run(park(primary, secondary, 24))
            assert usual > 0
            assert extra > 0
            assert usual + extra == 24
            assert drain(primary, secondary).exit_code == 1, "the host is an address, which contains no namespace name"
            name_option = ("--primary-name", "contoso")
            result, more = drain_while_parking(primary, secondary, *name_option, "--wait", "1")
            assert result.exit_code == 2
            assert re.search(r"\d\d messages are left: nothing has moved for 1 s", result.stderr)
            primary.start()
            result = drain(primary, secondary, *name_option, "--extra", "--count", "1")
            assert result.exit_code == 0, result.stderr
            assert primary.message_counts("orders") == (extra, 0)
            assert drain(primary, secondary, *name_option).exit_code == 0
            assert primary.message_counts("orders") == (24 + more, 0)
    finally:
        primary.kill()
