"""Clients report to the secondary at no charge; the secondary forgets clients that close or stop reporting."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.observe.reports import REPORT_INTERVAL_S
from twinbus.model.signature import make_token
from twinbus.server.paired_clients import backlog_reader
from twinbus.testing import InMemoryNamespace, InMemoryPair, in_virtual_time


async def read_json(secondary: InMemoryNamespace, address: str = "$pairing") -> dict[str, Any]:
    """Read the JSON that `twinbus pair status` reads."""
    where = secondary.factory().where
    assert where.key_name is not None
    assert where.key is not None
    base = f"http://{where.host}:5300"
    token = make_token(f"{base}/", where.key_name, where.key, secondary.clock.wall_ms() // 1000 + 60)
    async with httpx.AsyncClient(verify=False) as client:  # noqa: S501  # plain HTTP, and loads no certificates
        response = await client.get(f"{base}/{address}", headers={"Authorization": token})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def reports(app: Application) -> list[dict[str, Any]]:
    return list((await read_json(app.namespaces.secondary))["reports"])


@in_virtual_time
async def test_a_healthy_client_is_reported_until_it_is_closed() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, ping_primary_interval=1) as app:
            await app.queue_client().send(BrokeredMessage("apples"))
            for _ in range(10):
                await asyncio.sleep(REPORT_INTERVAL_S)
                (report,) = await reports(app)
                assert (report["primary"], report["healthy"], report["entities"]) == ("contoso", 1, [])
        assert await reports(app) == []


@in_virtual_time
async def test_r009_reports_of_a_healthy_client_cost_nothing_and_do_not_reach_the_primary() -> None:
    async with in_memory_pair_application(enable_syphon=False) as app:
        await app.queue_client().send(BrokeredMessage("apples"))
        await asyncio.sleep(1)
        usage_before = [namespace.usage() for namespace in (app.namespaces.primary, app.namespaces.secondary)]
        await asyncio.sleep(100 * REPORT_INTERVAL_S)
        assert len(await reports(app)) == 1
        await read_json(app.namespaces.secondary, "$pairing/$backlog")
        assert [namespace.usage() for namespace in (app.namespaces.primary, app.namespaces.secondary)] == usage_before
        assert app.events == []


@in_virtual_time
async def test_a_failover_and_its_end_are_reported_at_once() -> None:
    async with in_memory_pair_application(failover_interval=0, ping_primary_interval=10) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        await asyncio.sleep(60)
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("pears"))
        await asyncio.sleep(1)
        (report,) = await reports(app)
        (entity,) = report["entities"]
        assert (report["primary"], entity["path"], entity["state"]) == ("contoso", "orders", "failed over")
        assert "cannot be reached" in entity["why"]
        assert entity["next_ping"] is not None
        await asyncio.sleep(3600)
        assert len((await reports(app))[0]["entities"]) == 1
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(12)
        (report,) = await reports(app)
        assert report["entities"] == []


@in_virtual_time
async def test_a_silent_client_is_forgotten_after_three_missing_reports_until_it_reports_again() -> None:
    async with in_memory_pair_application() as app:
        await asyncio.sleep(1)
        app.namespaces.secondary.outage.stop()
        await asyncio.sleep(3 * REPORT_INTERVAL_S - 2)
        app.namespaces.secondary.outage.restore()
        assert len(await reports(app)) == 1
        app.namespaces.secondary.outage.stop()
        await asyncio.sleep(3 * REPORT_INTERVAL_S + 6)
        app.namespaces.secondary.outage.restore()
        assert await reports(app) == []
        await asyncio.sleep(REPORT_INTERVAL_S + 6)
        assert len(await reports(app)) == 1


@pytest.mark.parametrize("ending", ["pairing", "primary", "secondary", "abort"])
@in_virtual_time
async def test_closing_or_aborting_a_client_removes_its_report(ending: str) -> None:
    async with in_memory_pair_application() as app:
        await asyncio.sleep(1)
        assert len(await reports(app)) == 1
        if ending == "pairing":
            await app.pairing.close()
        elif ending == "abort":
            app.primary.abort(RuntimeError("given up"))
        else:
            await {"primary": app.primary, "secondary": app.pairing.secondary}[ending].close()
        await asyncio.sleep(0.1)
        assert await reports(app) == []


@in_virtual_time
async def test_applications_with_the_same_client_id_have_separate_reports() -> None:
    async with InMemoryPair() as namespaces:

        async def pair_up(manager_of: Application) -> MessagingFactory:
            primary, secondary = namespaces.factories(client_id="web")
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager_of.manager
            )
            await primary.pair_namespace(options)
            return primary

        async with paired_application(namespaces) as app:
            first, _ = await pair_up(app), await pair_up(app)
            await asyncio.sleep(1)
            assert [report["client"] for report in await reports(app)].count("web") == 2
            assert first.pairing is not None
            await first.pairing.close()
            assert [report["client"] for report in await reports(app)].count("web") == 1


@in_virtual_time
async def test_a_backlog_is_counted_in_full_and_its_destinations_from_the_oldest_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_reader, "MAX_MESSAGES", 20)
    monkeypatch.setattr(backlog_reader, "PAGE_MESSAGES", 7)
    async with in_memory_pair_application(queues=("orders", "late"), failover_interval=0, backlog_queue_count=1) as app:
        app.namespaces.primary.outage.stop()
        for path, count in (("orders", 15), ("ORDERS", 2), ("late", 10)):
            for _ in range(count):
                await app.queue_client(path).send(BrokeredMessage("apples"))
        (queue,) = (await read_json(app.namespaces.secondary, "$pairing/$backlog"))["queues"]
        assert (queue["path"], queue["parked"], queue["read"]) == (app.backlog_path(0), 27, 20)
        assert [(item["path"], item["messages"]) for item in queue["destinations"]] == [("orders", 17), ("late", 3)]
        monkeypatch.setattr(backlog_reader, "MAX_BYTES", 1)
        (queue,) = (await read_json(app.namespaces.secondary, "$pairing/$backlog"))["queues"]
        assert (queue["parked"], queue["read"]) == (27, 7), "one page exceeds the limit of bytes"


@in_virtual_time
async def test_messages_without_a_valid_path_have_no_destination() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        sender = app.pairing.secondary.create_message_sender(app.backlog_path(0))
        for path in ("\x1b[2Jorders", "x" * 261, "", 17):
            await sender.send(BrokeredMessage(properties={"x-ms-path": path}))
        await sender.send(BrokeredMessage())
        (queue,) = (await read_json(app.namespaces.secondary, "$pairing/$backlog"))["queues"]
        assert (queue["parked"], queue["unknown"], queue["destinations"]) == (5, 5, [])
