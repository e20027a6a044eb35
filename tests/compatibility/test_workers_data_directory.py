"""A data directory that two processes of an earlier version wrote is served by two processes, and by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from tests.compatibility.contents import counts
from tests.compatibility.namespace import check_contents, check_emptying
from tests.served import started
from tests.workers.crew import crew

if TYPE_CHECKING:
    from pathlib import Path


async def test_everything_is_found_and_received(tmp_path: Path) -> None:
    expected = unpack("workers-data-directory", tmp_path)["contents"]
    with crew(tmp_path, workers=2) as server:
        await check_contents(server, expected)
        await check_emptying(server, expected)


def test_one_process_finds_everything(tmp_path: Path) -> None:
    expected = unpack("workers-data-directory", tmp_path)["contents"]
    with started(tmp_path) as server:
        assert counts(server) == expected["counts"] | {"due": {"MessageCount": 3, "ActiveMessageCount": 3}}
