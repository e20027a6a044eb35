"""A data directory of an earlier version that was killed is served as that version served it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from tests.compatibility.namespace_checks import check_contents, check_new_messages, check_removal
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path


async def test_all_contents_are_read_and_received_and_new_messages_follow_them(tmp_path: Path) -> None:
    expected = unpack("data-directory", tmp_path)["contents"]
    with run_server(tmp_path) as server:
        await check_contents(server, expected)
        await check_removal(server, expected)
        await check_new_messages(server, expected)
