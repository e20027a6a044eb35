"""Outages are begun, listed and ended over HTTP and AMQP, and end by themselves."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.server.outage_switch.switch_client import OutageSwitchClient
from tests.support.entity_operations import ManagementResponse
from tests.support.raw_client import connect_raw
from tests.support.server_process import run_server, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess


async def request(client: RawClient, operation: str, body: object = None) -> ManagementResponse:
    """Send a request to the `$outage` node."""
    reply = await client.request("$outage", {"operation": operation}, body)
    properties, content = reply.application_properties, reply.value
    assert isinstance(properties, dict)
    assert isinstance(content, dict)
    condition = properties.get("errorCondition")
    text = str(properties["statusDescription"])
    return ManagementResponse(int(properties["statusCode"]), condition and str(condition), text, content)


def test_an_outage_is_listed_from_its_beginning_to_its_end(switch: OutageSwitchClient, queue: str) -> None:
    outage = switch.begin(queue.upper(), seconds=90.5, kind="busy")
    assert (outage["path"], outage["kind"]) == (queue, "busy")
    since, until = (dt.datetime.fromisoformat(outage[name]) for name in ("since", "until"))
    assert until - since == dt.timedelta(seconds=90.5)
    assert switch.active_outages() == [outage]
    assert switch.send(queue).status == 503
    assert switch.end(queue) == [outage]
    assert switch.active_outages() == switch.end(queue) == []
    assert switch.send(queue).status == 201


def test_the_default_kind_is_refuse(switch: OutageSwitchClient, queue: str) -> None:
    assert switch.request_outage(path=queue, seconds=60).status == 201
    assert switch.active_outages()[0]["kind"] == "refuse"


def test_one_request_ends_all_outages(switch: OutageSwitchClient, queue: str, server: ServerProcess) -> None:
    other = server.create_queue()
    for path in (queue, other, "*"):
        switch.begin(path)
    assert {ended["path"] for ended in switch.end()} == {queue, other, "*"}
    assert switch.send(queue).status == 201


def test_an_outage_ends_by_itself_and_its_begin_and_end_are_logged(
    switch: OutageSwitchClient, queue: str, server: ServerProcess
) -> None:
    switch.begin(queue, seconds=1)
    assert switch.send(queue).status == 503
    wait_until(lambda: not switch.active_outages())
    assert switch.send(queue).status == 201
    log = server.check_log()
    assert f"an outage was switched on entity={queue} kind=refuse" in log
    assert f"an outage is over entity={queue}" in log


def test_an_outage_does_not_survive_a_restart(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        queue, switch = server.create_queue(), OutageSwitchClient(server)
        switch.begin(queue)
        switch.begin("*")
        server.stop()
        server.start()
        assert switch.active_outages() == []
        assert switch.send(queue).status == 201


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"seconds": 60}, 400, "path is missing"),
        ({"path": "", "seconds": 60}, 400, "path is missing"),
        ({"path": "QUEUE"}, 400, "seconds is ''"),
        ({"path": "QUEUE", "seconds": "soon"}, 400, "seconds is 'soon'"),
        ({"path": "QUEUE", "seconds": "-1"}, 400, "seconds is '-1'"),
        ({"path": "QUEUE", "seconds": "1e3"}, 400, "seconds is '1e3'"),
        ({"path": "QUEUE", "seconds": "nan"}, 400, "seconds is 'nan'"),
        ({"path": "QUEUE", "seconds": 0}, 400, "1 to 3600 s"),
        ({"path": "QUEUE", "seconds": 3601}, 400, "1 to 3600 s"),
        ({"path": "QUEUE", "seconds": 60, "kind": "loud"}, 400, "refuse, busy, silent"),
        ({"path": "not-there", "seconds": 60}, 404, "could not be found"),
    ],
    ids=str,
)
def test_an_invalid_outage_is_refused_and_changes_nothing(
    switch: OutageSwitchClient, queue: str, query: dict[str, object], status: int, text: str
) -> None:
    reply = switch.request_outage(**{name: queue if value == "QUEUE" else value for name, value in query.items()})
    assert reply.status == status
    assert text in reply.detail
    assert switch.active_outages() == []


def test_other_methods_are_refused(switch: OutageSwitchClient) -> None:
    reply = switch.request("POST", "/$outage")
    assert reply.status == 405
    assert reply.headers["Allow"] == "PUT, GET, DELETE"


async def test_amqp_and_http_control_the_same_switch(
    switch: OutageSwitchClient, queue: str, server: ServerProcess
) -> None:
    async with connect_raw(server) as client:
        outage = await request(client, "twinbus:begin-outage", {"path": queue, "seconds": 60, "kind": "busy"})
        assert outage.status == 200
        assert switch.active_outages() == [outage.body]
        assert (await request(client, "twinbus:list-outages")).body == {"outages": [outage.body]}
        assert (await request(client, "twinbus:end-outage", {"path": queue})).body == {"outages": [outage.body]}
        assert switch.active_outages() == []


@pytest.mark.parametrize(
    ("operation", "body", "status", "text"),
    [
        ("twinbus:begin-outage", {"seconds": 60}, 400, "path is None"),
        ("twinbus:begin-outage", {"path": "*"}, 400, "seconds is None"),
        ("twinbus:begin-outage", {"path": "*", "seconds": "60"}, 400, "seconds is '60'"),
        ("twinbus:begin-outage", {"path": "*", "seconds": 60, "kind": 1}, 400, "kind is 1"),
        ("twinbus:begin-outage", ["*", 60], 400, "it must be a map"),
        ("twinbus:begin-outage", {"path": "not-there", "seconds": 60}, 404, "could not be found"),
        ("twinbus:purge", {}, 501, "twinbus:begin-outage"),
    ],
    ids=str,
)
async def test_over_amqp_an_invalid_request_is_refused(
    switch: OutageSwitchClient, server: ServerProcess, operation: str, body: object, status: int, text: str
) -> None:
    async with connect_raw(server) as client:
        answer = await request(client, operation, body)
    assert answer.status == status
    assert text in answer.text
    assert switch.active_outages() == []
