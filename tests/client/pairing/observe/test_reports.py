"""When a client reports to `$pairing` of the secondary, and what it does if a report fails.

The node here is a fake that fails on demand; `test_reports_to_secondary.py` uses a real one.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.client.pairing.observe.fake_pair import FakePair, run_scenario
from twinbus.amqp.message import Message, build, value
from twinbus.client.amqp.request_response import Response
from twinbus.client.errors import ConnectionFailed, ConnectionLost, EntityNotFound
from twinbus.client.pairing.failover.fragment_outages import RoutingKey
from twinbus.client.pairing.failover.pings import Pings
from twinbus.client.pairing.observe import reports
from twinbus.model.errors import QuotaExceeded, ServiceBusError
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.client.amqp.connection import AmqpConnection

PING_S = 60.0


class FakeConnection:
    is_open = True


class FakePairingNode:
    """A fake of the node `$pairing`, which stays the same when the client reconnects."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.refusal: ServiceBusError | None = None
        self.is_silent = False
        self.status = 202
        self.attaches = 0
        self.reports: list[dict[str, Any]] = []
        self.requests: list[Mapping[str, object]] = []
        self.tokens: list[str] = []

    async def authorized_connection(self, path: str) -> AmqpConnection:
        self.tokens.append(path)
        if not self.connection.is_open:
            raise ConnectionFailed("the secondary is down")
        return cast("AmqpConnection", self.connection)

    def links(self, connection: FakeConnection, node: str) -> FakeRequestLinks:
        assert connection is self.connection
        assert node == "$pairing"
        self.attaches += 1
        return FakeRequestLinks(self, connection)


class FakeRequestLinks:
    def __init__(self, node: FakePairingNode, connection: FakeConnection) -> None:
        self._node = node
        self._connection = connection

    @property
    def failure(self) -> ConnectionLost | None:
        is_open = self._connection is self._node.connection and self._connection.is_open
        return None if is_open else ConnectionLost("gone")

    async def open(self) -> None:
        if self._node.refusal is not None:
            raise self._node.refusal

    def detach(self) -> None:
        pass

    async def request(self, properties: Mapping[str, object], body: object, *, timeout_s: float) -> Response:
        if self._node.is_silent:
            await asyncio.sleep(timeout_s)
        self._node.requests.append(properties)
        if properties["operation"] == "twinbus:leave":
            return Response(Message(build(application_properties={"statusCode": self._node.status}, body=value(None))))
        assert isinstance(body, str)
        assert len(body.encode()) <= 65_536
        self._node.reports.append(json.loads(body))
        return Response(Message(build(application_properties={"statusCode": self._node.status}, body=value(None))))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakePairingNode:
    node = FakePairingNode()
    monkeypatch.setattr(reports, "RequestResponseLinks", node.links)
    monkeypatch.setattr(Pings, "start", lambda *_: None)  # without pings, no state changes by itself
    return node


def run_with_node(node: FakePairingNode, scenario: Any, **options: Any) -> None:  # noqa: ANN401
    async def connected(pair: FakePair) -> None:
        pair.pairing.secondary.authorized_connection = node.authorized_connection  # type: ignore[method-assign]
        await scenario(pair)

    run_scenario(connected, ping_primary_interval=PING_S, **options)


def test_a_change_of_state_is_reported_with_its_details(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.pairing.health_of("invoices")
        pair.fail_over("orders")
        await asyncio.sleep(1)
        (report,) = node.reports
        assert (report["client"], report["primary"], report["ping_interval_s"]) == ("client-1", "contoso", PING_S)
        assert (report["healthy"], report["is_protected"], report["runs_syphon"]) == (1, True, False)
        (entity,) = report["entities"]
        assert (entity["path"], entity["state"], entity["why"]) == ("orders", "failed over", "it is gone")
        assert entity["since"] == "2023-11-14T22:13:20.000+00:00"
        assert node.requests == [{"operation": "twinbus:report"}]
        assert set(node.tokens) == {"contoso/x-servicebus-transfer/0"}

    run_with_node(node, scenario)


def test_a_client_reports_at_its_start_and_every_half_minute_whether_healthy_or_not(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        await pair.sender("orders").send(BrokeredMessage())
        await asyncio.sleep(10 * reports.REPORT_INTERVAL_S)
        assert len(node.reports) == 10
        assert max(len(json.dumps(report)) for report in node.reports) < 700
        pair.fail_over("orders")
        await asyncio.sleep(10 * reports.REPORT_INTERVAL_S)
        assert 20 <= len(node.reports) <= 21
        assert node.attaches == 1

    run_with_node(node, scenario)


def test_there_is_at_most_one_report_a_second_and_the_last_one_has_the_last_change(
    node: FakePairingNode,
) -> None:
    async def scenario(pair: FakePair) -> None:
        for _ in range(100):
            pair.fail_over("orders")
            await asyncio.sleep(0.05)
            pair.pairing.mark_path_healthy("orders")
            await asyncio.sleep(0.05)
        pair.fail_over("invoices")
        await asyncio.sleep(2)
        assert len(node.reports) <= 13
        assert [entity["path"] for entity in node.reports[-1]["entities"]] == ["invoices"]

    run_with_node(node, scenario)


def test_simultaneous_changes_share_one_report(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        for number in range(20):
            pair.fail_over(f"orders{number}")
        await asyncio.sleep(1)
        assert [len(report["entities"]) for report in node.reports] == [20]

    run_with_node(node, scenario)


def test_a_server_without_the_node_gets_one_attach_per_connection(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        node.refusal = EntityNotFound("there is no $pairing")
        await asyncio.sleep(20 * PING_S)
        pair.fail_over("orders")
        await asyncio.sleep(20 * PING_S)
        assert node.attaches == 1
        assert len(node.tokens) == 2, "there are no requests between changes, so that the idle connection can be closed"
        node.connection, node.refusal = FakeConnection(), None
        pair.fail_over("invoices")
        await asyncio.sleep(1)
        assert node.attaches == 2
        assert len(node.reports) == 1

    run_with_node(node, scenario)


def test_reports_resume_when_the_secondary_is_available_again(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        node.connection.is_open = False
        pair.fail_over("orders")
        await asyncio.sleep(2 * PING_S)
        assert node.reports == []
        node.connection = FakeConnection()
        await asyncio.sleep(reports.REPORT_INTERVAL_S)
        assert len(node.reports) == 1

    run_with_node(node, scenario)


@pytest.mark.parametrize("trouble", ["down", "silent", "refused"])
def test_a_report_that_fails_affects_no_send(node: FakePairingNode, trouble: str) -> None:
    async def scenario(pair: FakePair) -> None:
        node.connection.is_open = trouble != "down"
        node.is_silent = trouble == "silent"
        node.status = 400 if trouble == "refused" else 202
        pair.set_parking_outcomes()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await pair.sender("orders", [ConnectionFailed("gone")]).send(BrokeredMessage())
        assert loop.time() == started_s
        await asyncio.sleep(3 * PING_S)
        await pair.sender("orders").send(BrokeredMessage())
        assert pair.event_kinds().count("parked") == 2

    run_with_node(node, scenario)


def test_a_report_with_many_failures_stays_within_the_size_limit(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        for number in range(500):
            health = pair.pairing.health_of(f"{number:03}/{'long' * 60}")
            health.send_failed(ServiceBusError("ß" * 10_000), RoutingKey())
        await asyncio.sleep(1)
        (report,) = node.reports
        assert len(report["entities"]) + report["entities_not_shown"] == 500
        assert report["entities"]

    run_with_node(node, scenario)


def test_a_report_has_queues_out_of_the_rotation_and_alarms(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        rotation = pair.pairing.rotation
        rotation.note_failure(rotation.queues[0], QuotaExceeded("it is full"))
        pair.backlog.park(rotation.queues[1].path, "orders")
        await asyncio.sleep(2_000)
        for _ in range(2):
            await pair.pairing.observers.alarms.check_backlog()
        await asyncio.sleep(1)
        first, second = node.reports[0], node.reports[-1]
        assert first["backlog"] == [{"path": "contoso/x-servicebus-transfer/0", "why_out": "it is full"}]
        assert second["backlog"] == [], "its cool-down is over"
        (alarm,) = second["alarms"]
        assert (alarm["kind"], alarm["path"]) == ("parked messages are not taken back", rotation.queues[1].path)

    run_with_node(node, scenario)


def test_a_closed_pair_sends_no_reports(node: FakePairingNode) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.fail_over("orders")
        await pair.pairing.close()
        await asyncio.sleep(10 * PING_S)
        assert node.reports == []

    run_with_node(node, scenario)


@pytest.mark.parametrize("trouble", ["none", "down", "silent", "refused"])
def test_closing_sends_a_leave_request_and_does_not_wait_long_for_its_response(
    node: FakePairingNode, trouble: str
) -> None:
    async def scenario(pair: FakePair) -> None:
        await asyncio.sleep(1)
        node.connection.is_open = trouble != "down"
        node.is_silent = trouble == "silent"
        node.status = 400 if trouble == "refused" else 202
        before_s = asyncio.get_running_loop().time()
        await pair.pairing.close()
        assert asyncio.get_running_loop().time() - before_s <= reports.LEAVE_TIMEOUT_S
        operations = [request["operation"] for request in node.requests]
        assert operations == ["twinbus:report"] + ["twinbus:leave"] * (trouble != "down")

    run_with_node(node, scenario)
