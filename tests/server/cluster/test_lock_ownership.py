"""Only the holder of a session settles its messages, also if another process has the session's fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.amqp.test_lock_ownership import assert_only_the_holder_settles
from tests.support.multi_process_server import run_multi_process_server
from tests.support.partitioned_namespace import key_for_fragment

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
