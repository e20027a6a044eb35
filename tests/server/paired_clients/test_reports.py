"""Reports of paired clients are read as they were written: over HTTP and AMQP, as JSON or as a map."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.server.paired_clients.reporter import make_report, new_client, request
from tests.support.entity_operations import peek
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.types import Array, Int, Symbol, Timestamp, UInt

if TYPE_CHECKING:
    from tests.server.paired_clients.reporter import Reporter


def test_a_report_is_read_with_the_time_of_its_arrival(reporter: Reporter) -> None:
    content = make_report(own_field={"deep": [1, 2.5, None, True, "Übung\n"]})
    assert reporter.put_report(content).status == 204
    [report] = [entry for entry in reporter.read() if entry["client"] == content["client"]]
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(report.pop("reported"))
    assert abs(age) < dt.timedelta(minutes=1)
    assert report == content


def test_a_later_report_of_a_client_replaces_the_earlier_one(reporter: Reporter) -> None:
    first = make_report(alarms=["the first"])
    last = {**first, "alarms": ["the last"]}
    for content in (first, last):
        assert reporter.put_report(content).status == 204
    assert reporter.reports_of(first["client"]) == [last]


def test_a_client_has_one_report_for_each_of_its_primaries(reporter: Reporter) -> None:
    first, second = make_report(client="both"), make_report(client="both", primary="fabrikam")
    for content in (first, second):
        assert reporter.put_report(content).status == 204
    assert reporter.reports_of("both") == [first, second]
    assert {report["primary"] for report in reporter.read(primary="FABRIKAM")} == {"fabrikam"}


def test_names_of_primaries_ignore_case(reporter: Reporter) -> None:
    client = new_client()
    for primary in ("contoso", "Contoso"):
        assert reporter.put_report(make_report(client=client, primary=primary)).status == 204
    assert [report["primary"] for report in reporter.reports_of(client)] == ["Contoso"]


async def test_over_amqp_a_report_may_be_json_or_a_map(reporter: Reporter) -> None:
    content = make_report()
    async with connect_raw(reporter.server) as client:
        assert (await request(client, "twinbus:report", json.dumps(content))).status == 200
        assert reporter.reports_of(content["client"]) == [content]
        assert (await request(client, "twinbus:report", {**content, "alarms": ["by map"]})).status == 200
    assert reporter.reports_of(content["client"]) == [{**content, "alarms": ["by map"]}]


async def test_amqp_values_are_read_as_json_values(reporter: Reporter) -> None:
    content = make_report(
        entities=Array(str, ["a", "b"]),
        since=Timestamp(1_700_000_000_123),
        ping_interval_s=UInt(30),
        extra={Symbol("small"): Int(-1), "state": Symbol("healthy")},
    )
    async with connect_raw(reporter.server) as client:
        assert (await request(client, "twinbus:report", content)).status == 200
    [report] = reporter.reports_of(content["client"])
    assert report["entities"] == ["a", "b"]
    assert report["since"] == "2023-11-14T22:13:20.123Z"
    assert report["ping_interval_s"] == 30
    assert report["extra"] == {"small": -1, "state": "healthy"}


async def test_reports_are_read_over_amqp(reporter: Reporter) -> None:
    content = make_report(primary="northwind")
    assert reporter.put_report(content).status == 204
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:read", {"primary": "Northwind"})
        assert answer.status == 200
        assert answer.body["next"] is None
        [text] = answer.body["reports"]
        assert json.loads(text).items() >= content.items()
        everything = await request(client, "twinbus:read")
        assert text in everything.body["reports"]


async def test_reports_are_read_in_pages_and_in_order(reporter: Reporter) -> None:
    clients = [f"paged-{number}" for number in range(5)]
    for name in reversed(clients):
        assert reporter.put_report(make_report(client=name, primary="paged")).status == 204
    first = reporter.get(primary="paged", _top=3)
    assert [report["client"] for report in first["reports"]] == clients[:3]
    assert first["next"] == 3
    rest = reporter.read(primary="paged", _skip=3)
    assert [report["client"] for report in rest] == clients[3:]
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:read", {"primary": "paged", "skip": 1, "top": 2})
        assert [json.loads(text)["client"] for text in answer.body["reports"]] == clients[1:3]
        assert answer.body["next"] == 3


async def test_the_size_of_a_page_is_limited(reporter: Reporter) -> None:
    large = ["x" * 4_000] * 15
    for number in range(20):
        assert (
            reporter.put_report(make_report(client=f"large-{number:02}", primary="large", alarms=large)).status == 204
        )
    first = reporter.get(primary="large")
    assert len(json.dumps(first)) < 1_100_000
    assert first["next"] == len(first["reports"]) < 20
    assert [report["client"] for report in reporter.read(primary="large")] == [
        f"large-{number:02}" for number in range(20)
    ]


async def test_the_report_of_a_leaving_client_is_removed(reporter: Reporter) -> None:
    first, second = make_report(), make_report()
    for content in (first, second):
        assert reporter.put_report(content).status == 204
    names = {name: first[name] for name in ("client", "primary", "instance")}
    async with connect_raw(reporter.server) as client:
        assert (await request(client, "twinbus:leave", names)).status == 200
        assert (await request(client, "twinbus:leave", names)).status == 200, "it has left, whoever says so again"
        assert (await request(client, "twinbus:leave", "text")).status == 400
        assert (await request(client, "twinbus:leave", {"client": "a"})).status == 400
    assert reporter.reports_of(first["client"]) == []
    query = urlencode({"primary": second["primary"], "instance": second["instance"]})
    assert reporter.request("DELETE", f"/$pairing/{second['client']}?primary=contoso").status == 204
    assert reporter.reports_of(second["client"]) == [second], "that is another instance"
    assert reporter.request("DELETE", f"/$pairing/{second['client']}?{query}").status == 204
    assert reporter.reports_of(second["client"]) == []


# --- $pairing is not an entity ----------------------------------------------------------------------------------------


def test_the_pairing_node_is_not_listed_and_cannot_be_created_or_deleted(reporter: Reporter) -> None:
    assert "$pairing" not in reporter.server.request("GET", "$Resources/queues", expected=200)
    assert reporter.request("DELETE", "/$pairing").status == 405
    assert reporter.request("PUT", "/$pairing/$backlog", b"{}").status == 405
    assert reporter.request("PUT", "/$pairing", b"<entry/>").status == 405
    assert reporter.request("POST", "/$pairing/messages", b"x").status == 405


async def test_the_pairing_node_has_no_messages_and_no_management(reporter: Reporter) -> None:
    async with connect_raw(reporter.server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await peek(client, "$pairing")
        answer = await request(client, "com.microsoft:peek-message")
        assert answer.status == 501
        assert "twinbus:report, twinbus:leave, twinbus:read" in answer.text
