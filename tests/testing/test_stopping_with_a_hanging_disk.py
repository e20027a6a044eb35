"""A server stops although a disk hangs, and leaves no tasks that could fail later."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from twinbus.client import BrokeredMessage
from twinbus.model.errors import ServiceBusError
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_a_store_that_does_not_close_is_abandoned_and_may_respond_later() -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        namespace.outage.hang_store()
        with pytest.raises(ServiceBusError):
            await namespace.factory().create_message_sender("orders").send(BrokeredMessage("apples"))
        await namespace.stop()
        await asyncio.sleep(0)
        left = [str(task) for task in asyncio.all_tasks() if "Stores" in str(task)]
        assert left == []
        namespace.outage.restore()
        await asyncio.sleep(60)
    gc.collect()
    assert faults == []
