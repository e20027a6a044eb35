"""Switched outages apply to all workers, and every worker lists the reports of all paired clients."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.server.paired_clients.reporter import make_report
from tests.support.cli import pair_status
from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_pair import connection_string, paired_application
from twinbus.cli.main import app as commands
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(tmp_path_factory.mktemp("crew"), workers=3) as server:
        yield server


@pytest.fixture
def server(running_server: MultiProcessServer) -> Iterator[MultiProcessServer]:
    yield running_server
    running_server.request_any(None, "DELETE", "$outage", expected=200)
    running_server.check_log()


def twinbus(*arguments: str) -> Any:  # noqa: ANN401  # click's result
    return CliRunner(env={"COLUMNS": "200"}).invoke(commands, arguments, prog_name="twinbus")


def test_an_outage_begun_at_one_worker_applies_to_all_and_ends_at_another(server: MultiProcessServer) -> None:
    queue = server.create_queue()
    with server.connect_to_each() as connections:
        outage = json.loads(
            server.request_on(connections[0], "PUT", f"$outage?path={queue}&seconds=60&kind=busy", expected=201)
        )
        for connection in connections.values():
            assert json.loads(server.request_on(connection, "GET", "$outage", expected=200)) == {"outages": [outage]}
            assert "too busy" in server.request_on(connection, "POST", f"{queue}/messages", "x", expected=503)
        ended = server.request_on(connections[1], "DELETE", f"$outage?path={queue}", expected=200)
        assert json.loads(ended) == {"outages": [outage]}
        for connection in connections.values():
            assert json.loads(server.request_on(connection, "GET", "$outage", expected=200)) == {"outages": []}
            server.send(queue, "x", connection)


def test_an_invalid_outage_is_refused(server: MultiProcessServer) -> None:
    assert "could not be found" in server.request_any(None, "PUT", "$outage?path=nothing&seconds=5", expected=404)
    queue = server.create_queue()
    assert "can last" in server.request_any(None, "PUT", f"$outage?path={queue}&seconds=99999", expected=400)
    assert "kind is 'odd'" in server.request_any(None, "PUT", f"$outage?path={queue}&seconds=5&kind=odd", expected=400)


def test_a_restarted_worker_has_the_current_outages(server: MultiProcessServer) -> None:
    server.request_any(None, "PUT", "$outage?path=*&seconds=600", expected=201)
    pid = server.signal_worker(1, signal.SIGKILL)
    server.wait_for_replacement(1, pid)
    server.wait_until_healthy()
    outages = {number: json.loads(text) for number, text in server.request_each("GET", "$outage", expected=200).items()}
    assert outages[0]["outages"][0]["path"] == "*"
    assert outages[0] == outages[1] == outages[2]


def test_twinbus_rehearse_makes_an_outage_in_all_workers_and_ends_it(server: MultiProcessServer) -> None:
    queue = server.create_queue()
    namespace = server.admin_connection_string
    result = twinbus("rehearse", namespace, "--entity", queue, "--for", "1.5", "--ca-file", server.ca_file)
    assert result.exit_code == 0, result.output
    assert server.log.count(f"an outage was switched on entity={queue} ") == 3
    with server.connect_to_each() as connections:
        for connection in connections.values():
            server.send(queue, "x", connection)


def test_every_worker_lists_the_reports_sent_to_any_worker(server: MultiProcessServer) -> None:
    with server.connect_to_each() as connections:
        for number, connection in connections.items():
            content = make_report(client=f"client-{number}", primary="Told", own=[1, 2.5, None, {"deep": "\u00e9"}])
            body = json.dumps(content)
            server.request_on(connection, "PUT", f"$pairing/client-{number}?", body, expected=204)
        for connection in connections.values():
            page = json.loads(server.request_on(connection, "GET", "$pairing?primary=told", expected=200))
            assert [report["client"] for report in page["reports"]] == ["client-0", "client-1", "client-2"]
            assert page["reports"][0]["own"] == [1, 2.5, None, {"deep": "\u00e9"}]
            assert page["next"] is None
            first = json.loads(server.request_on(connection, "GET", "$pairing?primary=told&$top=2", expected=200))
            assert (len(first["reports"]), first["next"]) == (2, 2)


async def test_x03_pair_status_counts_parked_messages_of_all_workers_and_drops_closed_senders(
    server: MultiProcessServer,
) -> None:
    with socket.socket() as unused:
        unused.bind((server.host, 0))
        nowhere = connection_string(server, port=unused.getsockname()[1])

    async def status() -> dict[str, Any]:
        return dict(json.loads(await pair_status(server, "--primary", "shown", "--json")))

    async with (
        MessagingFactory.from_connection_string(nowhere, operation_timeout=20) as primary,
        paired_application(
            server, server, factory=primary, primary_namespace_name="shown", backlog_queue_count=6
        ) as app,
    ):
        for number in range(20):
            await primary.create_queue_client("orders").send(BrokeredMessage(f"order {number}"))
        await app.wait_for_event(EventKind.FAILED_OVER)
        async with asyncio.timeout(20):
            while not (shown := await status())["senders"] or not shown["senders"][0]["entities"]:  # noqa: ASYNC110  # the server has no event
                await asyncio.sleep(0.1)
        assert sum(queue["parked"] for queue in shown["backlog_queues"]) == 20
        parked = [
            (entry["path"], entry["messages"]) for queue in shown["backlog_queues"] for entry in queue["destinations"]
        ]
        assert {path for path, _ in parked} == {"orders"}
        assert sum(count for _, count in parked) == 20
        assert [entry["state"] for entry in shown["senders"][0]["entities"]] == ["failed over"]
    assert (await status())["senders"] == []
