"""Only the holder of a session may settle its messages, also if another process owns the session's fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.amqp.test_lock_ownership import assert_only_the_holder_settles
from tests.support.multi_process_server import run_multi_process_server
from tests.support.partitioned_namespace import key_for_fragment

if TYPE_CHECKING:
    from pathlib import Path


async def test_only_the_session_holder_settles_its_messages_in_any_process(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        partitioned = server.create_queue(RequiresSession="true", EnablePartitioning="true")
        plain = [server.create_queue(RequiresSession="true") for _ in range(2)]
        for fragment in range(4):  # fragments of both processes
            await assert_only_the_holder_settles(server, partitioned, key_for_fragment(fragment))
        for queue in plain:
            await assert_only_the_holder_settles(server, queue, "a")
