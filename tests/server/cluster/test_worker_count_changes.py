"""The number of workers may change at any start, and all messages remain available."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from pathlib import Path


def test_messages_survive_a_change_of_the_number_of_workers(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--stores=4", workers=2) as server:
        plain = [server.create_queue() for _ in range(4)]
        server.request(
            "PUT", "spread", QUEUE_ENTRY.format("<EnablePartitioning>true</EnablePartitioning>"), expected=201
        )
        sent = [f"message {number}" for number in range(20)]
        for queue in (*plain, "spread"):
            for text in sent:
                server.send(queue, text)
        for count in (4, 1, 3):
            server.stop()
            server.options = ("contoso", f"--workers={count}")
            server.start()
            for queue in plain:
                assert server.receive_and_delete(queue) == sent[0]
                server.send(queue, sent[0])  # at the end
            plain_order = [*sent[1:], sent[0]]
            sent = plain_order
        assert sorted(server.receive_and_delete("spread") for _ in range(20)) == sorted(sent)
        for queue in plain:
            assert [server.receive_and_delete(queue) for _ in range(20)] == sent
