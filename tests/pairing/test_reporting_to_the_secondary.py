"""Clients tell the secondary how they are: not more often than needed, and forgotten when they fall silent."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.pairing.application import Application, paired
from twinbus.client import BrokeredMessage
from twinbus.model.signature import make_token
from twinbus.testing import in_virtual_time


async def reports(app: Application) -> list[dict[str, Any]]:
    """What `twinbus pair status` reads."""
    where = app.pairing.secondary.where
    assert where.key_name is not None
    assert where.key is not None
    base = f"http://{where.host}:5300"
    token = make_token(f"{base}/", where.key_name, where.key, app.namespaces.clock.wall_ms() // 1000 + 60)
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{base}/$pairing", headers={"Authorization": token})
    found: list[dict[str, Any]] = answer.json()["reports"]
    return found


@in_virtual_time
async def test_a_failover_is_reported_and_the_end_of_it_too() -> None:
    async with paired(failover_interval=0, ping_primary_interval=10) as app:
        queue = app.queue()
        await queue.send(BrokeredMessage("apples"))
        await asyncio.sleep(60)
        assert await reports(app) == []
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("pears"))
        await asyncio.sleep(1)
        (report,) = await reports(app)
        (entity,) = report["entities"]
        assert (report["primary"], entity["path"], entity["state"]) == ("contoso", "orders", "failed over")
        assert "cannot be reached" in entity["why"]
        assert entity["next_ping"] is not None
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(12)
        (report,) = await reports(app)
        assert report["entities"] == []
        await asyncio.sleep(35)
        assert await reports(app) == []


@in_virtual_time
async def test_it_goes_on_being_reported_while_it_lasts() -> None:
    async with paired(failover_interval=0, ping_primary_interval=10) as app:
        app.namespaces.primary.outage.stop()
        await app.queue().send(BrokeredMessage("pears"))
        await asyncio.sleep(3600)
        assert len(await reports(app)) == 1
