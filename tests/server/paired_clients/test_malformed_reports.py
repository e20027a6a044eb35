"""An invalid report is refused with a reason, and the previous report stays."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.paired_clients.reporter import make_report, request
from tests.support.raw_client import connect_raw
from twinbus.amqp.types import Timestamp

if TYPE_CHECKING:
    from tests.server.paired_clients.reporter import Reporter

WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"primary": None}, "primary is None"),
    ({"primary": 7}, "primary is 7"),
    ({"primary": ""}, "primary is ''"),
    ({"primary": "con/toso"}, "primary is 'con/toso'"),
    ({"primary": "x" * 51}, "the name of a namespace"),
    ({"ping_interval_s": None}, "ping_interval_s is None"),
    ({"ping_interval_s": "60"}, "ping_interval_s is '60'"),
    ({"ping_interval_s": True}, "ping_interval_s is True"),
    ({"ping_interval_s": 0.9}, "1 to 1800"),
    ({"ping_interval_s": 1_801}, "1 to 1800"),
    ({"report_interval_s": 0.9}, "report_interval_s is 0.9"),
    ({"report_interval_s": "30"}, "report_interval_s is '30'"),
    ({"instance": "two words"}, "instance is 'two words'"),
    ({"why": "\x1b[2Jgone"}, "control characters"),
    ({"na\x07me": 1}, "control characters"),
    ({"entities": [{"why": "x" * 4_097}]}, "limit: 4,096"),
    ({"deep": [[[[[[[[1]]]]]]]]}, "8 levels deep"),
]
WRONG_TEXTS = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b"[]", "send a map"),
    (b"null", "send a map"),
    (b'"text"', "send a map"),
    (b"\xff\xfe", "not valid JSON"),
    (b'{"client": NaN}', "not valid JSON"),
    (b'{"client": "\\ud800"}', "not valid JSON"),
    (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, "not valid JSON"),
    (b'{"client": 1e400}', "not valid JSON"),
]
WRONG_VALUES = [
    (b"binary", "JSON cannot represent"),
    (uuid.UUID(int=7), "JSON cannot represent"),
    (float("nan"), "JSON cannot represent"),
    (float("inf"), "JSON cannot represent"),
    (Timestamp(2**62), "a time out of range"),
    ({1: "by number"}, "a name in the report is 1"),
    ({b"x": "by bytes"}, "a name in the report"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG_FIELDS, ids=str)
async def test_an_invalid_field_is_refused(reporter: Reporter, wrong: dict[str, Any], text: str) -> None:
    good = make_report()
    assert reporter.put_report(good).status == 204
    bad = make_report(client=good["client"], **wrong)
    reply = reporter.put_report(bad)
    assert reply.status == 400
    assert text in reply.detail
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:report", bad)
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert text in answer.text
    assert reporter.reports_of(good["client"]) == [good]


@pytest.mark.parametrize("name", ["", " ", "two words", "x" * 129, "a/b", "tab\t", 7, None])
async def test_an_invalid_client_name_is_refused(reporter: Reporter, name: object) -> None:
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:report", {**make_report(), "client": name})
        assert answer.status == 400
        assert "client is" in answer.text or "control" in answer.text


@pytest.mark.parametrize(("content", "text"), WRONG_TEXTS, ids=[repr(content)[:20] for content, _ in WRONG_TEXTS])
async def test_a_body_that_is_not_a_report_is_refused(reporter: Reporter, content: bytes, text: str) -> None:
    reply = reporter.put_text("someone", content)
    assert reply.status == 400
    assert text in reply.detail
    assert reporter.reports_of("someone") == []


@pytest.mark.parametrize("body", [None, 7, [], True, b"binary", "text"], ids=str)
async def test_over_amqp_a_body_that_is_neither_text_nor_map_is_refused(reporter: Reporter, body: object) -> None:
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:report", body)
        assert answer.status == 400
        assert (await request(client, "twinbus:report", make_report())).status == 200


@pytest.mark.parametrize(("value", "text"), WRONG_VALUES, ids=[repr(value) for value, _ in WRONG_VALUES])
async def test_a_value_without_json_representation_is_refused(reporter: Reporter, value: object, text: str) -> None:
    async with connect_raw(reporter.server) as client:
        answer = await request(client, "twinbus:report", make_report(odd=value))
        assert answer.status == 400
        assert text in answer.text


def test_a_report_of_another_client_than_in_the_address_is_refused(reporter: Reporter) -> None:
    content = make_report()
    reply = reporter.request("PUT", "/$pairing/another", json.dumps(content))
    assert reply.status == 400
    assert "another client" in reply.detail
    assert reporter.reports_of(content["client"]) == []


async def test_a_report_that_is_too_large_is_refused(reporter: Reporter) -> None:
    content = make_report(alarms=["x" * 4_000] * 17)
    assert reporter.put_report(content).status == 413
    async with connect_raw(reporter.server) as client:
        for body in (content, str(content)):
            answer = await request(client, "twinbus:report", body)
            assert (answer.status, answer.condition) == (403, "amqp:link:message-size-exceeded")
            assert "65,536" in answer.text
    assert reporter.reports_of(content["client"]) == []


@pytest.mark.parametrize("arguments", [{"skip": -1}, {"top": 0}, {"primary": 7}, {"skip": "x"}, []], ids=str)
async def test_invalid_arguments_of_a_read_are_refused(reporter: Reporter, arguments: object) -> None:
    async with connect_raw(reporter.server) as client:
        assert (await request(client, "twinbus:read", arguments)).status == 400
