"""Only the holder of a session settles its messages, also if another process has the session's fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.partitioned.bus import key_for_fragment
from tests.plain.test_locks_of_others import assert_only_the_holder_settles
from tests.workers.crew import run_multi_process_server

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_message_of_a_session_is_settled_by_its_holder_alone_wherever_it_lies(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queue = server.create_queue(RequiresSession="true", EnablePartitioning="true")
        plain = [server.create_queue(RequiresSession="true") for _ in range(2)]
        for fragment in range(4):  # of both processes, whichever the clients are connected to
            await assert_only_the_holder_settles(server, queue, key_for_fragment(fragment))
        for one in plain:
            await assert_only_the_holder_settles(server, one, "a")
