"""A send that fails because its pairing is closed triggers no failover: a closed pairing cannot ping the entity."""

from __future__ import annotations

import asyncio

from tests.support.paired_application import in_memory_pair_application
from twinbus.client.errors import ConnectionLost
from twinbus.client.pairing import EntityState
from twinbus.client.pairing.failover.fragment_outages import RoutingKey
from twinbus.testing import in_virtual_time


@in_virtual_time
async def test_a_failure_after_a_close_triggers_no_failover() -> None:
    loop_errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loop_errors.append(context))
    async with in_memory_pair_application(failover_interval=5) as app:
        health = app.pairing.health_of("orders")
    health.send_failed(ConnectionLost("the factory is closed"), RoutingKey())
    await asyncio.sleep(60)
    assert health.state is EntityState.HEALTHY
    assert loop_errors == []
