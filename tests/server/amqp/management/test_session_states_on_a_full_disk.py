"""Below `--min-free`, setting a session state is refused like a send; clearing one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.entity_operations import accept_session, order_message, request_management
from tests.support.raw_client import connect_raw
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path

SET = "com.microsoft:set-session-state"


async def test_below_min_free_a_session_state_is_refused_like_a_send(tmp_path: Path) -> None:
    with run_server(tmp_path, "--min-free=1000000GiB") as server:
        queue = server.create_queue(RequiresSession="true")
        async with connect_raw(server) as client:
            condition = await client.send(await client.attach_sender(queue), order_message(1, session="a"))
            assert condition is not None
            await accept_session(client, queue, "a")
            answer = await request_management(client, queue, SET, {"session-id": "a", "session-state": b"half done"})
            assert (answer.status, answer.condition) == (503, condition)
            assert "--min-free" in answer.text
            assert (
                await request_management(client, queue, SET, {"session-id": "a", "session-state": None})
            ).status == 200
