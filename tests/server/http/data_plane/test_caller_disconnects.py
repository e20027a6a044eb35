"""If the caller disconnects in the same turn in which its message arrives, the message returns to the queue."""

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


async def after_the_message_is_locked(server: InProcessServer, queue: str) -> None:
    loop = asyncio.get_running_loop()
    caller = Caller(loop.create_future(), loop.create_future(), [])
    receiver = HttpReceiver([server.namespace.find(queue).parts[0].main], caller)
    deliver = receiver.deliver

    def deliver_and_close(deliveries: list[Delivery]) -> int:
        count = deliver(deliveries)
        caller.closed.set_result(None)
        return count

    receiver.deliver = deliver_and_close  # type: ignore[method-assign]
    with pytest.raises(ClientDisconnect):
        await receiver.receive(10)


async def after_the_response_is_made(server: InProcessServer, queue: str) -> None:
    caller, response = await prepare_deletion(server, queue)
    caller.closed.set_result(None)
    await response({"type": "http"}, fail_if_called, lambda _event: fail_if_called())


async def while_the_response_is_sent(server: InProcessServer, queue: str) -> None:
    _, response = await prepare_deletion(server, queue)

    async def send(_event: object) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await response({"type": "http"}, fail_if_called, send)


async def prepare_deletion(server: InProcessServer, queue: str) -> tuple[Caller, DeletingResponse]:
    """Lock a message for deletion, and return the caller and the response to send."""
    loop, source = asyncio.get_running_loop(), server.namespace.find_receivable(queue)
    caller = Caller(loop.create_future(), loop.create_future(), [])
    main = source.parts[0].main
    delivery = await HttpReceiver([main], caller).receive(10)
    assert delivery is not None
    response = DeletingResponse(b"x")
    response.deletion = PendingDeletion(source, main, delivery, caller, server.namespace.begin_transaction())
    return caller, response


async def fail_if_called() -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize(
    "disconnect", [after_the_message_is_locked, after_the_response_is_made, while_the_response_is_sent]
)
def test_the_message_returns_to_the_queue_and_no_delivery_is_counted(
    tmp_path: Path, disconnect: Callable[[InProcessServer, str], Coroutine[None, None, None]]
) -> None:
    with run_server_in_process(tmp_path) as server:
        client, queue = HttpClient(server), server.create_queue()
        client.send(queue, "x")
        disconnecting = disconnect(server, queue)
        asyncio.run_coroutine_threadsafe(disconnecting, server._loop).result(20)  # noqa: SLF001  # the broker's event loop
        received = client.peek_lock(queue)
        assert (received.body, received.properties["DeliveryCount"]) == (b"x", 1)
        assert received.properties["SequenceNumber"] == 1
        assert server.message_counts(queue) == (1, 0)


async def deletion(server: InProcessServer, queue: str) -> list[tuple[str, int]]:
    """Send the response, and return its events, each with the message count at that time."""
    caller, response = await prepare_deletion(server, queue)
    main = server.namespace.find(queue).parts[0].main
    events: list[tuple[str, int]] = []

    async def send(event: Mapping[str, object]) -> None:
        events.append((str(event["type"]), main.local.active_count))
        if event.get("body") and not caller.closed.done():
            caller.closed.set_result(None)  # the caller has the whole response and disconnects

    await response({"type": "http"}, fail_if_called, send)
    return events


def test_a_message_is_deleted_once_its_response_is_sent_even_if_the_caller_leaves(tmp_path: Path) -> None:
    with run_server_in_process(tmp_path) as server:
        client, queue = HttpClient(server), server.create_queue()
        client.send(queue, "x")
        deleting = deletion(server, queue)
        events = asyncio.run_coroutine_threadsafe(deleting, server._loop).result(20)  # noqa: SLF001
        assert events == [("http.response.start", 1), ("http.response.body", 1), ("http.response.body", 0)]
        assert server.message_counts(queue) == (0, 0)
