"""Send on a backlog queue allows reports for its primary, Listen allows reading them; neither for other primaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.paired_clients.reporter import SECRET, make_report, request
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from tests.server.paired_clients.reporter import Reporter
    from tests.support.raw_client import RawClient

BACKLOG = "contoso/x-servicebus-transfer"
SUFFICIENT = [
    ("root", ""),
    ("all-sender", ""),
    ("all-sender", "$pairing"),
    ("all-sender", "contoso"),
    ("all-sender", BACKLOG),
    ("all-sender", f"{BACKLOG}/7"),
    ("sender", f"{BACKLOG}/0"),
    ("sender", f"{BACKLOG}/1"),
]
INSUFFICIENT = [
    ("all-listener", ""),
    ("all-sender", "fabrikam"),
    ("all-sender", "contoso/orders"),
    ("all-sender", f"{BACKLOG}/0/$management"),
    ("all-sender", f"{BACKLOG}/x"),
    ("all-sender", f"other/{BACKLOG}/0"),
    ("listener", f"{BACKLOG}/0"),
    ("sender", "fabrikam/x-servicebus-transfer/0"),
]


async def put_token(client: RawClient, reporter: Reporter, key_name: str, scope: str) -> None:
    properties = {"operation": "put-token", "name": f"sb://{reporter.server.host}/{scope}", "type": "jwt"}
    answer = await client.request_status("$cbs", properties, reporter.token_of(key_name, scope))
    assert answer["status-code"] == 202


@pytest.mark.parametrize(("key_name", "scope"), SUFFICIENT)
async def test_send_on_a_backlog_queue_allows_reports(reporter: Reporter, key_name: str, scope: str) -> None:
    content = make_report()
    assert reporter.put_report(content, token=reporter.token_of(key_name, scope)).status == 204
    assert reporter.reports_of(content["client"]) == [content]
    async with connect_raw(reporter.server, Credentials.anonymous()) as client:
        await put_token(client, reporter, key_name, scope)
        changed = {**content, "alarms": ["over AMQP"]}
        assert (await request(client, "twinbus:report", changed)).status == 200
    assert reporter.reports_of(content["client"]) == [changed]


@pytest.mark.parametrize(("key_name", "scope"), INSUFFICIENT)
async def test_without_send_on_a_backlog_queue_reports_are_refused(
    reporter: Reporter, key_name: str, scope: str
) -> None:
    content = make_report()
    reply = reporter.put_report(content, token=reporter.token_of(key_name, scope))
    assert reply.status == 401
    async with connect_raw(reporter.server, Credentials.anonymous()) as client:
        await put_token(client, reporter, key_name, scope)
        answer = await request(client, "twinbus:report", content)
        assert (answer.status, answer.condition) == (401, "amqp:unauthorized-access")
        assert "'Send' claim(s) on a queue of 'contoso/x-servicebus-transfer'" in answer.text
        names = {"client": content["client"], "primary": "contoso", "instance": content["instance"]}
        assert reporter.put_report(content).status == 204
        assert (await request(client, "twinbus:leave", names)).status == 401
    address = f"/$pairing/{content['client']}?primary=contoso&instance={content['instance']}"
    assert reporter.request("DELETE", address, token=reporter.token_of(key_name, scope)).status == 401
    assert reporter.reports_of(content["client"]) == [content]


async def test_the_key_of_a_backlog_queue_is_accepted_as_a_sasl_password(reporter: Reporter) -> None:
    async with connect_raw(reporter.server, Credentials.plain("sender", f"{BACKLOG}/1")) as client:
        assert (await request(client, "twinbus:report", make_report())).status == 200
        assert (await request(client, "twinbus:report", make_report(primary="fabrikam"))).status == 401


def test_a_token_for_one_client_is_not_valid_for_another(reporter: Reporter) -> None:
    content = make_report()
    address = f"$pairing/{content['client']}"
    assert reporter.put_report(content, token=reporter.token_of("all-sender", address)).status == 204
    assert reporter.put_report(make_report(), token=reporter.token_of("all-sender", address)).status == 401


def test_listen_on_a_backlog_queue_allows_reading_of_its_primary_only(reporter: Reporter) -> None:
    ours, theirs = make_report(), make_report(primary="fabrikam")
    for content in (ours, theirs):
        assert reporter.put_report(content).status == 204
    for scope in (f"{BACKLOG}/0", f"{BACKLOG}/1"):
        token = reporter.token_of("listener", scope)
        assert reporter.reports_of(ours["client"], token=token) == [ours]
        assert {report["primary"].lower() for report in reporter.read(token=token)} == {"contoso"}
        assert reporter.request("GET", "/$pairing?primary=fabrikam", token=token).status == 401
        assert reporter.request("GET", "/$pairing/$backlog?primary=fabrikam", token=token).status == 401
        assert {queue["primary"] for queue in reporter.backlog(token=token)} == {"contoso"}
    token = reporter.token_of("all-listener")
    assert {queue["primary"] for queue in reporter.backlog(token=token)} == {"contoso", "fabrikam"}
    assert reporter.reports_of(theirs["client"], token=token) == [theirs]


async def test_over_amqp_listen_allows_reading_of_its_primary_only(reporter: Reporter) -> None:
    for primary in ("contoso", "fabrikam"):
        assert reporter.put_report(make_report(primary=primary)).status == 204
    async with connect_raw(reporter.server, Credentials.plain("listener", f"{BACKLOG}/0")) as client:
        answer = await request(client, "twinbus:read")
        assert answer.body["reports"]
        assert all('"primary":"contoso"' in text.lower() for text in answer.body["reports"])
        assert (await request(client, "twinbus:read", {"primary": "fabrikam"})).status == 401


@pytest.mark.parametrize("key_name", ["all-sender", "sender"])
def test_send_without_listen_reads_no_reports(reporter: Reporter, key_name: str) -> None:
    assert reporter.put_report(make_report()).status == 204
    scope = "" if key_name == "all-sender" else f"{BACKLOG}/0"
    assert reporter.read(token=reporter.token_of(key_name, scope)) == []
    assert reporter.backlog(token=reporter.token_of(key_name, scope)) == []


@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize(
    "token", ["none", "SharedAccessSignature sr=a&sig=b&se=1&skn=c", "Bearer x"], ids=["none", "wrong", "bearer"]
)
def test_without_a_valid_token_a_request_is_refused(reporter: Reporter, method: str, token: str) -> None:
    address = "/$pairing/someone" if method == "PUT" else "/$pairing"
    assert reporter.request(method, address, b"no report", token=token).status == 401


def test_an_expired_token_is_refused(reporter: Reporter) -> None:
    token = reporter.server.token("", lifetime_s=-10, key=SECRET, key_name="root")
    assert reporter.put_report(make_report(), token=token).status == 401


async def test_over_amqp_links_without_a_token_are_refused(reporter: Reporter) -> None:
    async with connect_raw(reporter.server, Credentials.anonymous()) as client:
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_sender("$pairing")
