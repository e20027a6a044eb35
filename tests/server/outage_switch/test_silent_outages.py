"""A silent outage delays all replies until it ends; then pending requests are refused, and nothing is stored."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tests.support.entity_operations import FAR_FUTURE_MS, order_message, request_management, send_orders
from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import condition_of, connect_raw
from tests.support.server_process import wait_until
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.events import AttachConfirmed, LinkDetached, SendsUpdated
from twinbus.amqp.message import Properties, build, value
from twinbus.amqp.outcomes import Discharge, Rejected, TransactionalState
from twinbus.amqp.terminus import Source, Target
from twinbus.model.outage import OutageKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.outage_switch.switch_client import OutageSwitchClient
    from tests.support.in_process_server import InProcessServer
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.link import Link

T = TypeVar("T")
UNAVAILABLE = "amqp:internal-error"
TIMEOUT_S = 20.0


def answers(client: RawClient, delivery: OutgoingDelivery) -> list[str | None]:
    states = [event.state for event in client.events_of(SendsUpdated) if delivery in event.deliveries]
    return [condition_of(state.error) if isinstance(state, Rejected) else None for state in states]


def refusals(client: RawClient, link: Link) -> list[str | None]:
    return [condition_of(event.error) for event in client.events_of(LinkDetached) if event.link is link]


async def flush(client: RawClient, server: ServerProcess) -> None:
    """Wait until the server has handled all earlier frames: it replies in order, and another queue is available."""
    await send_orders(client, server.create_queue(), [1])


def on_loop(server: InProcessServer, call: Callable[[], T]) -> T:
    """Call a function on the server's event loop, and return its result."""
    done: Future[T] = Future()
    server._loop.call_soon_threadsafe(lambda: done.set_result(call()))  # noqa: SLF001  # the only access to its loop
    return done.result(TIMEOUT_S)


def deferred_replies(server: InProcessServer) -> int:
    return on_loop(server, lambda: sum(outage.deferred_reply_count for outage in server.namespace.outages.all()))


def open_http_socket(server: ServerProcess) -> socket.socket:
    return socket.create_connection((server.host, server.http_port), timeout=TIMEOUT_S)


async def poll_until(condition: Callable[[], object]) -> None:
    """Poll a condition while the clients go on reading and writing."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  # it changes on another thread, without an event
            await asyncio.sleep(0.01)


async def test_a_send_gets_no_disposition_before_the_end_and_is_not_stored(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        switch.begin(queue, kind="silent")
        sent = [link.send(order_message(number)) for number in (1, 2)]
        await flush(client, server)
        assert [answers(client, delivery) for delivery in sent] == [[], []]
        switch.end(queue)
        await client.wait_until(lambda: all(answers(client, delivery) for delivery in sent))
        assert [answers(client, delivery) for delivery in sent] == [[UNAVAILABLE], [UNAVAILABLE]]
        assert await client.send(link, order_message(3)) is None
    assert server.message_counts(queue) == (1, 0)


async def test_an_attach_is_not_answered_before_the_end(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        switch.begin(queue, kind="silent")
        sender = client.session.attach_sender("s", target=Target(address=queue), source=Source(address="here"))
        receiver = client.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
        await flush(client, server)
        links = [event.link for event in client.events_of(AttachConfirmed)]
        assert sender not in links
        assert receiver not in links
        switch.end(queue)
        await client.wait_until(lambda: refusals(client, sender) and refusals(client, receiver))
        assert refusals(client, sender) == refusals(client, receiver) == [UNAVAILABLE]
        await send_orders(client, queue, [1])


async def test_a_pending_attach_can_be_detached(server: ServerProcess, switch: OutageSwitchClient, queue: str) -> None:
    async with connect_raw(server) as client:
        switch.begin(queue, kind="silent")
        receiver = client.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
        await flush(client, server)
        receiver.detach()
        await flush(client, server)
        switch.end(queue)
        await send_orders(client, queue, [1])


async def test_a_request_is_not_answered_before_the_end(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        switch.begin(queue, kind="silent")
        body = {"messages": [{"message": order_message(1, due_ms=FAR_FUTURE_MS), "message-id": "1"}]}
        request = asyncio.create_task(request_management(client, queue, "com.microsoft:schedule-message", body))
        await flush(client, server)
        assert not request.done()
        switch.end(queue)
        answer = await request
        assert (answer.status, answer.condition) == (503, UNAVAILABLE)


async def test_a_commit_with_a_send_in_it_is_not_answered_before_the_end(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    async with connect_raw(server) as client:
        link, coordinator = await client.attach_sender(queue), await attach_coordinator(client)
        txn_id = await coordinator.declare()
        assert await client.send(link, order_message(1), state=TransactionalState(txn_id=txn_id)) is None
        switch.begin(queue, kind="silent")
        discharge = coordinator.link.send(build(body=value(Discharge(txn_id=txn_id, fail=False))))
        await flush(client, server)
        assert answers(client, discharge) == []
        switch.end(queue)
        await client.wait_until(lambda: answers(client, discharge))
        assert answers(client, discharge) == [UNAVAILABLE]
    assert server.message_counts(queue) == (0, 0)


def test_http_requests_are_not_answered_before_the_end(
    server: ServerProcess, switch: OutageSwitchClient, queue: str
) -> None:
    switch.begin(queue, kind="silent")
    with switch.raw_socket() as sender, switch.raw_socket() as receiver:
        sender.sendall(switch.request_head("POST", f"/{queue}/messages", "Content-Length: 4") + b"body")
        receiver.sendall(switch.request_head("DELETE", f"/{queue}/messages/head?timeout=0"))
        for connection in (sender, receiver):
            connection.settimeout(0.3)
            try:
                assert not connection.recv(1), "it was answered"
            except TimeoutError:
                connection.settimeout(20)
        switch.end(queue)
        for connection in (sender, receiver):
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
    assert server.message_counts(queue) == (0, 0)


def test_a_stopping_server_does_not_wait_for_the_end_of_the_outage(tmp_path: Path) -> None:
    with run_server_in_process(tmp_path) as server:
        queue = server.create_queue()
        on_loop(server, lambda: server.namespace.outages.begin(queue, OutageKind.SILENT, 600))
        request = f"POST /{queue}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('')}\r\n"
        connection = open_http_socket(server)
        connection.sendall(f"{request}Content-Length: 0\r\n\r\n".encode())
        wait_until(lambda: deferred_replies(server))
        server.stop_in_process()
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
        connection.close()


async def test_pending_requests_of_disconnected_clients_are_dropped(tmp_path: Path) -> None:
    """Clients reconnect often during a long outage: otherwise the server would keep all that they ever sent."""
    with run_server_in_process(tmp_path) as server:
        queue = server.create_queue()
        async with connect_raw(server) as staying, connect_raw(server) as leaving:
            links = [await client.attach_sender(queue) for client in (staying, leaving)]
            management = await leaving.attach_sender(f"{queue}/$management")
            coordinator = await attach_coordinator(leaving)
            txn_id = await coordinator.declare()
            assert await leaving.send(links[1], order_message(9), state=TransactionalState(txn_id=txn_id)) is None
            on_loop(server, lambda: server.namespace.outages.begin(queue, OutageKind.SILENT, 600))
            for link in links:
                link.send(order_message(1))
            leaving.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
            coordinator.link.send(build(body=value(Discharge(txn_id=txn_id, fail=False))))
            request = Properties(message_id="1", reply_to="answers")
            operation = {"operation": "com.microsoft:peek-message"}
            management.send(build(properties=request, application_properties=operation, body=value({})))
            connection = open_http_socket(server)
            head = f"POST /{queue}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('')}\r\n"
            connection.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
            await poll_until(lambda: deferred_replies(server) == 6)
            connection.close()
            await poll_until(lambda: deferred_replies(server) == 5)
            leaving.peer.transport.abort()
            await poll_until(lambda: deferred_replies(server) == 1)
            [outage] = on_loop(server, server.namespace.outages.end)
            assert outage.is_over
            await staying.wait_until(lambda: staying.events_of(SendsUpdated))
