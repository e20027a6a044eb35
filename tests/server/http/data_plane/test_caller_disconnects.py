"""A caller whose connection ends in the very turn in which its message comes: the message is in the queue again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import pytest
from starlette.requests import ClientDisconnect

from tests.support.http_client import HttpClient
from tests.support.in_process_server import run_server_in_process
from twinbus.server.http.call import Caller
from twinbus.server.http.message_receiver import DeletingResponse, HttpReceiver, PendingDeletion

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer
    from twinbus.broker.ports.consumer import Delivery


async def when_it_is_locked(server: InProcessServer, queue: str) -> None:
    loop = asyncio.get_running_loop()
    caller = Caller(loop.create_future(), loop.create_future(), [])
    taker = HttpReceiver([server.namespace.find(queue).parts[0].main], caller)
    deliver = taker.deliver

    def go(deliveries: list[Delivery]) -> int:
        taken = deliver(deliveries)
        caller.closed.set_result(None)
        return taken

    taker.deliver = go  # type: ignore[method-assign]
    with pytest.raises(ClientDisconnect):
        await taker.receive(10)


async def when_its_answer_is_made(server: InProcessServer, queue: str) -> None:
    caller, response = await received_and_deleted(server, queue)
    caller.closed.set_result(None)
    await response({"type": "http"}, nothing_to_receive, lambda _event: nothing_to_receive())


async def when_its_answer_cannot_be_sent(server: InProcessServer, queue: str) -> None:
    _, response = await received_and_deleted(server, queue)

    async def send(_event: object) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await response({"type": "http"}, nothing_to_receive, send)


async def received_and_deleted(server: InProcessServer, queue: str) -> tuple[Caller, DeletingResponse]:
    """Who asked, and the answer that is to be sent."""
    loop, source = asyncio.get_running_loop(), server.namespace.find_receivable(queue)
    caller = Caller(loop.create_future(), loop.create_future(), [])
    main = source.parts[0].main
    delivery = await HttpReceiver([main], caller).receive(10)
    assert delivery is not None
    response = DeletingResponse(b"x")
    response.deletion = PendingDeletion(source, main, delivery, caller, server.namespace.begin_transaction())
    return caller, response


async def nothing_to_receive() -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize("go", [when_it_is_locked, when_its_answer_is_made, when_its_answer_cannot_be_sent])
def test_the_message_is_there_again_and_no_delivery_is_counted(
    tmp_path: Path, go: Callable[[InProcessServer, str], Coroutine[None, None, None]]
) -> None:
    with run_server_in_process(tmp_path) as server:
        web, queue = HttpClient(server), server.create_queue()
        web.send(queue, "x")
        going = go(server, queue)
        asyncio.run_coroutine_threadsafe(going, server._loop).result(20)  # noqa: SLF001  # where the broker lives
        received = web.peek_lock(queue)
        assert (received.body, received.properties["DeliveryCount"]) == (b"x", 1)
        assert received.properties["SequenceNumber"] == 1
        assert server.message_counts(queue) == (1, 0)


async def deletion(server: InProcessServer, queue: str) -> list[tuple[str, int]]:
    """What is sent, each with how many messages there are by then."""
    caller, response = await received_and_deleted(server, queue)
    main = server.namespace.find(queue).parts[0].main
    seen: list[tuple[str, int]] = []

    async def send(event: Mapping[str, object]) -> None:
        seen.append((str(event["type"]), main.local.active_count))
        if event.get("body") and not caller.closed.done():
            caller.closed.set_result(None)  # it has all, and goes

    await response({"type": "http"}, nothing_to_receive, send)
    return seen


def test_a_message_is_deleted_when_its_answer_was_handed_over_also_to_one_who_goes_at_once(tmp_path: Path) -> None:
    with run_server_in_process(tmp_path) as server:
        web, queue = HttpClient(server), server.create_queue()
        web.send(queue, "x")
        going = deletion(server, queue)
        seen = asyncio.run_coroutine_threadsafe(going, server._loop).result(20)  # noqa: SLF001
        assert seen == [("http.response.start", 1), ("http.response.body", 1), ("http.response.body", 0)]
        assert server.message_counts(queue) == (0, 0)
