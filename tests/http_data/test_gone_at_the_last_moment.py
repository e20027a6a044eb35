"""A caller whose connection ends in the very turn in which its message comes: the message is in the queue again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from starlette.requests import ClientDisconnect

from tests.http_data.web import Web
from tests.served_here import serving_here
from twinbus.server.http.caller import Caller
from twinbus.server.http.taker import Taker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.served_here import ServedHere
    from twinbus.broker.consumer import Delivery


async def take_and_go(server: ServedHere, queue: str, *, deletes: bool) -> None:
    loop = asyncio.get_running_loop()
    caller = Caller(loop.create_future(), loop.create_future(), [])
    taker = Taker(server.namespace.find(queue).main, caller, deletes=deletes)
    deliver = taker.deliver

    def go(deliveries: list[Delivery]) -> int:
        if deletes:  # it is deleted on disk by now, and not taken
            caller.lost.set_result(None)
            return deliver(deliveries)
        taken = deliver(deliveries)  # it is locked
        caller.lost.set_result(None)
        return taken

    taker.deliver = go  # type: ignore[method-assign]
    with pytest.raises(ClientDisconnect):
        await taker.take(10)


@pytest.mark.parametrize("deletes", [False, True], ids=["under a lock", "deleted"])
def test_the_message_is_there_again_and_no_delivery_is_counted(tmp_path: Path, *, deletes: bool) -> None:
    with serving_here(tmp_path) as server:
        web, queue = Web(server), server.make_queue()
        web.send(queue, "x")
        going = take_and_go(server, queue, deletes=deletes)
        asyncio.run_coroutine_threadsafe(going, server._loop).result(20)  # noqa: SLF001  # where the broker lives
        received = web.lock(queue)
        assert (received.body, received.properties["DeliveryCount"]) == (b"x", 1)
        assert received.properties["SequenceNumber"] == 1
        assert server.counts(queue) == (1, 0)
