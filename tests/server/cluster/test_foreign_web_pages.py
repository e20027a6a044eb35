"""With the emulator key, every worker refuses requests from the pages of other sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.multi_process_server import run_multi_process_server

if TYPE_CHECKING:
    from pathlib import Path


def test_every_worker_refuses_an_unknown_host_name(tmp_path: Path) -> None:
    with (
        run_multi_process_server(tmp_path, "--emulator-key", "--allowed-host=friend.example", workers=2) as server,
        server.connect_to_each() as connections,
    ):
        for connection in connections.values():
            for host, status in (
                ("evil.example", 403),
                ("friend.example", 200),
                ("localhost", 200),
                (server.host, 200),
            ):
                server.request_on(connection, "GET", "health", expected=status, headers={"Host": host})
