"""Every worker answers the JSON API for all of them; a worker that is silent is shown as down."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.support.multi_process_server import connected_worker, run_multi_process_server
from tests.support.server_process import wait_until
from twinbus.client import BrokeredMessage, MessagingFactory

if TYPE_CHECKING:
    import http.client
    from pathlib import Path

    from tests.support.multi_process_server import MultiProcessServer


def read(server: MultiProcessServer, connection: http.client.HTTPConnection, resource: str) -> Any:  # noqa: ANN401
    return json.loads(server.request_on(connection, "GET", f"$api/v1/{resource}", expected=200))


async def test_each_worker_shows_the_fragments_and_clients_of_all(two_workers: MultiProcessServer) -> None:
    server = two_workers
    queues = [server.create_queue(), server.create_queue(), server.create_queue(EnablePartitioning="true")]
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        held = []
        for queue in queues:
            client = factory.create_queue_client(queue)
            await client.send_batch([BrokeredMessage(str(number)) for number in range(4)])
            held.append((client, await client.receive(10)))
        with server.connect_to_each() as connections:
            worker = connected_worker(server)
            answers = [
                {
                    "entities": [strip(read(server, connection, f"entities/{queue}")) for queue in queues],
                    "locks": [strip_locks(read(server, connection, f"locks/{queue}")) for queue in queues],
                    "connections": [one["id"] for one in read(server, connection, "connections")["connections"]],
                    "stores": read(server, connection, "stores"),
                }
                for connection in connections.values()
            ]
            assert answers[0] == answers[1]
            answer = answers[0]
            (connection_id,) = answer["connections"]
            assert connection_id.startswith(f"{worker}-")
            for queue, entity, locks in zip(queues, answer["entities"], answer["locks"], strict=True):
                assert (entity["path"], entity["counts"]["active"], entity["receivers"]) == (queue, 4, 1)
                assert sum(fragment["counts"]["active"] for fragment in entity["fragments"]) == 4
                holders = {lock["holder"]["connection_id"] for lock in locks}
                assert holders == {connection_id}, "a fragment of the other worker does not know its holder"
            assert {fragment["worker"] for fragment in answer["entities"][2]["fragments"]} == {0, 1}
            workers = [one["number"] for one in read(server, connections[0], "workers")["workers"] if one["is_up"]]
            assert workers == [0, 1]
            other = connections[1 - worker]
            server.request_on(other, "DELETE", f"$api/v1/connections/{connection_id}", expected=204)

            def is_closed() -> bool:
                listed = read(server, other, "connections")["connections"]
                return connection_id not in [connection["id"] for connection in listed]

            await asyncio.to_thread(wait_until, is_closed)  # the client responds on this loop


def strip(entity: dict[str, Any]) -> dict[str, Any]:
    """Return an entity without the figures that depend on the time of the request."""
    return {name: value for name, value in entity.items() if name not in ("oldest_active_age_s", "rates")}


def strip_locks(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return locks without their times, which are computed from two clocks and may differ by a millisecond."""
    return [{name: value for name, value in lock.items() if "locked_" not in name} for lock in page["locks"]]


def test_a_silent_worker_is_shown_as_down_with_its_last_figures(tmp_path: Path) -> None:
    with (
        run_multi_process_server(tmp_path, "--worker-timeout=30", workers=2) as server,
        server.connect_to_each() as connections,
    ):
        queues = [server.create_queue() for _ in range(2)]  # in a store of each worker
        for queue in queues:
            server.send(queue, "hello")
        alive = partial(read, server, connections[0])
        before = alive("entities")["entities"]
        assert [entity["is_available"] for entity in before] == [True, True]
        server.signal_worker(1, signal.SIGSTOP)
        began_s = time.monotonic()
        shown = alive("entities")["entities"]
        assert time.monotonic() - began_s < 4
        assert sorted(entity["is_available"] for entity in shown) == [False, True]
        assert [entity["counts"]["active"] for entity in shown] == [1, 1]
        assert [entity["totals"]["enqueued"] for entity in shown] == [1, 1]
        overview = alive("overview")
        assert (overview["workers"], overview["workers_up"]) == (2, 1)
        assert overview["unavailable_entities"] == 1
        assert "worker-down" in [alert["name"] for alert in overview["alerts"]]
        (down,) = [worker for worker in alive("workers")["workers"] if not worker["is_up"]]
        assert (down["number"], down["connections"]) == (1, 0)
        page = server.request_on(connections[0], "GET", "$api/v1/metrics", expected=200)
        assert 'twinbus_worker_up{worker="1"} 0' in page
        server.signal_worker(1, signal.SIGCONT)
        wait_until(lambda: all(entity["is_available"] for entity in alive("entities")["entities"]))
