"""Send on one backlog queue is enough to report for its primary, Listen to read of it; of other primaries nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pairing_node.reporter import SECRET, ask, report
from tests.plain.raw import Refused, raw
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from tests.pairing_node.reporter import Reporter
    from tests.plain.raw import Raw

BACKLOG = "contoso/x-servicebus-transfer"
ENOUGH = [
    ("root", ""),
    ("all-sender", ""),
    ("all-sender", "$pairing"),
    ("all-sender", "contoso"),
    ("all-sender", BACKLOG),
    ("all-sender", f"{BACKLOG}/7"),
    ("sender", f"{BACKLOG}/0"),
    ("sender", f"{BACKLOG}/1"),
]
LESS = [
    ("all-listener", ""),
    ("all-sender", "fabrikam"),
    ("all-sender", "contoso/orders"),
    ("all-sender", f"{BACKLOG}/0/$management"),
    ("all-sender", f"{BACKLOG}/x"),
    ("all-sender", f"other/{BACKLOG}/0"),
    ("listener", f"{BACKLOG}/0"),
    ("sender", "fabrikam/x-servicebus-transfer/0"),
]


async def show(client: Raw, reporter: Reporter, key_name: str, scope: str) -> None:
    properties = {"operation": "put-token", "name": f"sb://{reporter.server.host}/{scope}", "type": "jwt"}
    answer = await client.ask("$cbs", properties, reporter.token_of(key_name, scope))
    assert answer["status-code"] == 202


@pytest.mark.parametrize(("key_name", "scope"), ENOUGH)
async def test_who_may_send_to_a_backlog_queue_reports(reporter: Reporter, key_name: str, scope: str) -> None:
    content = report()
    assert reporter.put(content, token=reporter.token_of(key_name, scope)).status == 204
    assert reporter.of(content["client"]) == [content]
    async with raw(reporter.server, Credentials.anonymous()) as client:
        await show(client, reporter, key_name, scope)
        again = {**content, "alarms": ["over AMQP"]}
        assert (await ask(client, "twinbus:report", again)).status == 200
    assert reporter.of(content["client"]) == [again]


@pytest.mark.parametrize(("key_name", "scope"), LESS)
async def test_who_may_not_does_not(reporter: Reporter, key_name: str, scope: str) -> None:
    content = report()
    reply = reporter.put(content, token=reporter.token_of(key_name, scope))
    assert reply.status == 401
    async with raw(reporter.server, Credentials.anonymous()) as client:
        await show(client, reporter, key_name, scope)
        answer = await ask(client, "twinbus:report", content)
        assert (answer.status, answer.condition) == (401, "amqp:unauthorized-access")
        assert "'Send' claim(s) on a queue of 'contoso/x-servicebus-transfer'" in answer.text
        names = {"client": content["client"], "primary": "contoso", "instance": content["instance"]}
        assert reporter.put(content).status == 204
        assert (await ask(client, "twinbus:leave", names)).status == 401
    address = f"/$pairing/{content['client']}?primary=contoso&instance={content['instance']}"
    assert reporter.call("DELETE", address, token=reporter.token_of(key_name, scope)).status == 401
    assert reporter.of(content["client"]) == [content]


async def test_the_key_of_a_backlog_queue_as_a_password_will_do(reporter: Reporter) -> None:
    async with raw(reporter.server, Credentials.plain("sender", f"{BACKLOG}/1")) as client:
        assert (await ask(client, "twinbus:report", report())).status == 200
        assert (await ask(client, "twinbus:report", report(primary="fabrikam"))).status == 401


def test_a_token_for_one_client_is_none_for_another(reporter: Reporter) -> None:
    content = report()
    address = f"$pairing/{content['client']}"
    assert reporter.put(content, token=reporter.token_of("all-sender", address)).status == 204
    assert reporter.put(report(), token=reporter.token_of("all-sender", address)).status == 401


def test_whoever_listens_to_one_backlog_queue_reads_of_its_primary_alone(reporter: Reporter) -> None:
    ours, theirs = report(), report(primary="fabrikam")
    for content in (ours, theirs):
        assert reporter.put(content).status == 204
    for scope in (f"{BACKLOG}/0", f"{BACKLOG}/1"):
        token = reporter.token_of("listener", scope)
        assert reporter.of(ours["client"], token=token) == [ours]
        assert {found["primary"].lower() for found in reporter.read(token=token)} == {"contoso"}
        assert reporter.call("GET", "/$pairing?primary=fabrikam", token=token).status == 401
        assert reporter.call("GET", "/$pairing/$backlog?primary=fabrikam", token=token).status == 401
        assert {queue["primary"] for queue in reporter.backlog(token=token)} == {"contoso"}
    token = reporter.token_of("all-listener")
    assert {queue["primary"] for queue in reporter.backlog(token=token)} == {"contoso", "fabrikam"}
    assert reporter.of(theirs["client"], token=token) == [theirs]


async def test_over_amqp_it_reads_of_its_primary_alone_too(reporter: Reporter) -> None:
    for primary in ("contoso", "fabrikam"):
        assert reporter.put(report(primary=primary)).status == 204
    async with raw(reporter.server, Credentials.plain("listener", f"{BACKLOG}/0")) as client:
        answer = await ask(client, "twinbus:read")
        assert answer.body["reports"]
        assert all('"primary":"contoso"' in text.lower() for text in answer.body["reports"])
        assert (await ask(client, "twinbus:read", {"primary": "fabrikam"})).status == 401


@pytest.mark.parametrize("key_name", ["all-sender", "sender"])
def test_who_may_only_send_reads_nothing(reporter: Reporter, key_name: str) -> None:
    assert reporter.put(report()).status == 204
    scope = "" if key_name == "all-sender" else f"{BACKLOG}/0"
    assert reporter.read(token=reporter.token_of(key_name, scope)) == []
    assert reporter.backlog(token=reporter.token_of(key_name, scope)) == []


@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize(
    "token", ["none", "SharedAccessSignature sr=a&sig=b&se=1&skn=c", "Bearer x"], ids=["none", "wrong", "bearer"]
)
def test_without_a_token_that_is_good_nothing_is_read_of_a_request(reporter: Reporter, method: str, token: str) -> None:
    address = "/$pairing/someone" if method == "PUT" else "/$pairing"
    assert reporter.call(method, address, b"no report", token=token).status == 401


def test_a_token_that_has_expired_is_none(reporter: Reporter) -> None:
    token = reporter.server.token("", lifetime_s=-10, key=SECRET, key_name="root")
    assert reporter.put(report(), token=token).status == 401


async def test_over_amqp_who_has_shown_nothing_is_not_even_heard(reporter: Reporter) -> None:
    async with raw(reporter.server, Credentials.anonymous()) as client:
        with pytest.raises(Refused, match="amqp:unauthorized-access"):
            await client.attach_sender("$pairing")
