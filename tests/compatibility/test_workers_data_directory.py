"""A data directory of two processes of an earlier version can be served by two processes or by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from tests.compatibility.contents import read_counts
from tests.compatibility.namespace_checks import check_contents, check_removal
from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path


async def test_two_processes_read_and_deliver_all_contents(tmp_path: Path) -> None:
    expected = unpack("workers-data-directory", tmp_path)["contents"]
    with run_multi_process_server(tmp_path, workers=2) as server:
        await check_contents(server, expected)
        await check_removal(server, expected)


def test_one_process_reads_all_counts(tmp_path: Path) -> None:
    expected = unpack("workers-data-directory", tmp_path)["contents"]
    with run_server(tmp_path) as server:
        assert read_counts(server) == expected["counts"] | {"due": {"MessageCount": 3, "ActiveMessageCount": 3}}
