"""An outage is switched on and off over HTTP and AMQP, is seen while it is on, and ends by itself."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.outage.switch import Switch
from tests.plain.entity import Answer
from tests.plain.raw import raw
from tests.served import started, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plain.raw import Raw
    from tests.served import Served


async def ask(client: Raw, operation: str, body: object = None) -> Answer:
    """A request to the node."""
    found = await client.request("$outage", {"operation": operation}, body)
    told, content = found.application_properties, found.value
    assert isinstance(told, dict)
    assert isinstance(content, dict)
    condition = told.get("errorCondition")
    text = str(told["statusDescription"])
    return Answer(int(told["statusCode"]), condition and str(condition), text, content)


def test_one_is_seen_from_its_beginning_to_its_end(switch: Switch, queue: str) -> None:
    begun = switch.begin(queue.upper(), seconds=90.5, kind="busy")
    assert (begun["path"], begun["kind"]) == (queue, "busy")
    since, until = (dt.datetime.fromisoformat(begun[name]) for name in ("since", "until"))
    assert until - since == dt.timedelta(seconds=90.5)
    assert switch.all() == [begun]
    assert switch.send(queue).status == 503
    assert switch.end(queue) == [begun]
    assert switch.all() == switch.end(queue) == []
    assert switch.send(queue).status == 201


def test_refusing_is_what_it_does_unless_it_is_told_otherwise(switch: Switch, queue: str) -> None:
    assert switch.put(path=queue, seconds=60).status == 201
    assert switch.all()[0]["kind"] == "refuse"


def test_one_request_ends_all(switch: Switch, queue: str, server: Served) -> None:
    other = server.make_queue()
    for path in (queue, other, "*"):
        switch.begin(path)
    assert {ended["path"] for ended in switch.end()} == {queue, other, "*"}
    assert switch.send(queue).status == 201


def test_it_ends_by_itself_and_the_log_tells_both(switch: Switch, queue: str, server: Served) -> None:
    switch.begin(queue, seconds=1)
    assert switch.send(queue).status == 503
    wait_until(lambda: not switch.all())
    assert switch.send(queue).status == 201
    log = server.check_log()
    assert f"an outage was switched on entity={queue} kind=refuse" in log
    assert f"an outage is over entity={queue}" in log


def test_it_is_not_kept_over_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        queue, switch = server.make_queue(), Switch(server)
        switch.begin(queue)
        switch.begin("*")
        server.stop()
        server.start()
        assert switch.all() == []
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
def test_what_cannot_be_is_refused_and_changes_nothing(
    switch: Switch, queue: str, query: dict[str, object], status: int, text: str
) -> None:
    reply = switch.put(**{name: queue if value == "QUEUE" else value for name, value in query.items()})
    assert reply.status == status
    assert text in reply.detail
    assert switch.all() == []


def test_other_methods_are_refused(switch: Switch) -> None:
    reply = switch.call("POST", "/$outage")
    assert reply.status == 405
    assert reply.headers["Allow"] == "PUT, GET, DELETE"


async def test_over_amqp_it_is_the_same_switch(switch: Switch, queue: str, server: Served) -> None:
    async with raw(server) as client:
        begun = await ask(client, "twinbus:begin-outage", {"path": queue, "seconds": 60, "kind": "busy"})
        assert begun.status == 200
        assert switch.all() == [begun.body]
        assert (await ask(client, "twinbus:list-outages")).body == {"outages": [begun.body]}
        assert (await ask(client, "twinbus:end-outage", {"path": queue})).body == {"outages": [begun.body]}
        assert switch.all() == []


@pytest.mark.parametrize(
    ("operation", "body", "status", "text"),
    [
        ("twinbus:begin-outage", {"seconds": 60}, 400, "path is None"),
        ("twinbus:begin-outage", {"path": "*"}, 400, "seconds is None"),
        ("twinbus:begin-outage", {"path": "*", "seconds": "60"}, 400, "seconds is '60'"),
        ("twinbus:begin-outage", {"path": "*", "seconds": 60, "kind": 1}, 400, "kind is 1"),
        ("twinbus:begin-outage", ["*", 60], 400, "it is a map"),
        ("twinbus:begin-outage", {"path": "not-there", "seconds": 60}, 404, "could not be found"),
        ("twinbus:purge", {}, 501, "twinbus:begin-outage"),
    ],
    ids=str,
)
async def test_over_amqp_what_cannot_be_is_refused_too(
    switch: Switch, server: Served, operation: str, body: object, status: int, text: str
) -> None:
    async with raw(server) as client:
        answer = await ask(client, operation, body)
    assert answer.status == status
    assert text in answer.text
    assert switch.all() == []
