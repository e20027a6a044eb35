"""In a silent outage nothing is answered while it lasts; in the end who still waits is refused, and nothing stored."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tests.plain.coordinator import control
from tests.plain.entity import FAR_MS, manage, order, send_orders
from tests.plain.raw import condition_of, raw
from tests.served import wait_until
from tests.served_here import serving_here
from twinbus.amqp.events import AttachConfirmed, LinkDetached, SendsUpdated
from twinbus.amqp.message import Properties, build, value
from twinbus.amqp.outcomes import Discharge, Rejected, TransactionalState
from twinbus.amqp.terminus import Source, Target
from twinbus.model.outage import OutageKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.outage.switch import Switch
    from tests.plain.raw import Raw
    from tests.served import Served
    from tests.served_here import ServedHere
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.link import Link

T = TypeVar("T")
UNAVAILABLE = "amqp:internal-error"
PATIENCE_S = 20.0


def answers(client: Raw, delivery: OutgoingDelivery) -> list[str | None]:
    states = [event.state for event in client.noted(SendsUpdated) if delivery in event.deliveries]
    return [condition_of(state.error) if isinstance(state, Rejected) else None for state in states]


def refusals(client: Raw, link: Link) -> list[str | None]:
    return [condition_of(event.error) for event in client.noted(LinkDetached) if event.link is link]


async def heard(client: Raw, server: Served) -> None:
    """All that was said before was heard: the server answers in order, and not for a moment is this one silent."""
    await send_orders(client, server.make_queue(), [1])


def on_loop(server: ServedHere, call: Callable[[], T]) -> T:
    """Something is done where the server does all it does."""
    done: Future[T] = Future()
    server._loop.call_soon_threadsafe(lambda: done.set_result(call()))  # noqa: SLF001  # it has no other way in
    return done.result(PATIENCE_S)


def waiting(server: ServedHere) -> int:
    return on_loop(server, lambda: sum(outage.waiting for outage in server.namespace.outages.all()))


def connected(server: Served) -> socket.socket:
    return socket.create_connection((server.host, server.http_port), timeout=PATIENCE_S)


async def until(happened: Callable[[], object]) -> None:
    """Look again and again, and let the clients read and write meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  # it happens on another thread, which tells nobody
            await asyncio.sleep(0.01)


async def test_a_send_is_not_answered_before_the_end_and_not_stored_then(
    server: Served, switch: Switch, queue: str
) -> None:
    async with raw(server) as client:
        link = await client.attach_sender(queue)
        switch.begin(queue, kind="silent")
        sent = [link.send(order(number)) for number in (1, 2)]
        await heard(client, server)
        assert [answers(client, delivery) for delivery in sent] == [[], []]
        switch.end(queue)
        await client.until(lambda: all(answers(client, delivery) for delivery in sent))
        assert [answers(client, delivery) for delivery in sent] == [[UNAVAILABLE], [UNAVAILABLE]]
        assert await client.send(link, order(3)) is None
    assert server.counts(queue) == (1, 0)


async def test_an_attach_is_not_answered_before_the_end(server: Served, switch: Switch, queue: str) -> None:
    async with raw(server) as client:
        switch.begin(queue, kind="silent")
        sender = client.session.attach_sender("s", target=Target(address=queue), source=Source(address="here"))
        receiver = client.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
        await heard(client, server)
        links = [event.link for event in client.noted(AttachConfirmed)]
        assert sender not in links
        assert receiver not in links
        switch.end(queue)
        await client.until(lambda: refusals(client, sender) and refusals(client, receiver))
        assert refusals(client, sender) == refusals(client, receiver) == [UNAVAILABLE]
        await send_orders(client, queue, [1])


async def test_an_attach_can_be_taken_back_meanwhile(server: Served, switch: Switch, queue: str) -> None:
    async with raw(server) as client:
        switch.begin(queue, kind="silent")
        receiver = client.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
        await heard(client, server)
        receiver.detach()
        await heard(client, server)
        switch.end(queue)
        await send_orders(client, queue, [1])


async def test_a_request_is_not_answered_before_the_end(server: Served, switch: Switch, queue: str) -> None:
    async with raw(server) as client:
        switch.begin(queue, kind="silent")
        body = {"messages": [{"message": order(1, due_ms=FAR_MS), "message-id": "1"}]}
        asked = asyncio.create_task(manage(client, queue, "com.microsoft:schedule-message", body))
        await heard(client, server)
        assert not asked.done()
        switch.end(queue)
        answer = await asked
        assert (answer.status, answer.condition) == (503, UNAVAILABLE)


async def test_a_commit_with_a_send_in_it_is_not_answered_before_the_end(
    server: Served, switch: Switch, queue: str
) -> None:
    async with raw(server) as client:
        link, coordinator = await client.attach_sender(queue), await control(client)
        txn_id = await coordinator.declare()
        assert await client.send(link, order(1), state=TransactionalState(txn_id=txn_id)) is None
        switch.begin(queue, kind="silent")
        discharge = coordinator.link.send(build(body=value(Discharge(txn_id=txn_id, fail=False))))
        await heard(client, server)
        assert answers(client, discharge) == []
        switch.end(queue)
        await client.until(lambda: answers(client, discharge))
        assert answers(client, discharge) == [UNAVAILABLE]
    assert server.counts(queue) == (0, 0)


def test_over_http_too(server: Served, switch: Switch, queue: str) -> None:
    switch.begin(queue, kind="silent")
    with switch.raw() as sender, switch.raw() as receiver:
        sender.sendall(switch.head("POST", f"/{queue}/messages", "Content-Length: 4") + b"body")
        receiver.sendall(switch.head("DELETE", f"/{queue}/messages/head?timeout=0"))
        for connection in (sender, receiver):
            connection.settimeout(0.3)
            try:
                assert not connection.recv(1), "it was answered"
            except TimeoutError:
                connection.settimeout(20)
        switch.end(queue)
        for connection in (sender, receiver):
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
    assert server.counts(queue) == (0, 0)


def test_a_server_that_stops_does_not_wait_for_its_end(tmp_path: Path) -> None:
    with serving_here(tmp_path) as server:
        queue = server.make_queue()
        on_loop(server, lambda: server.namespace.outages.begin(queue, OutageKind.SILENT, 600))
        request = f"POST /{queue}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('')}\r\n"
        connection = connected(server)
        connection.sendall(f"{request}Content-Length: 0\r\n\r\n".encode())
        wait_until(lambda: waiting(server))
        server.stop_here()
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
        connection.close()


async def test_nothing_is_kept_of_those_who_have_given_up(tmp_path: Path) -> None:
    """Clients come again and again in an hour: what each of them sent would be kept to the end."""
    with serving_here(tmp_path) as server:
        queue = server.make_queue()
        async with raw(server) as staying, raw(server) as going:
            links = [await client.attach_sender(queue) for client in (staying, going)]
            asked = await going.attach_sender(f"{queue}/$management")
            coordinator = await control(going)
            txn_id = await coordinator.declare()
            assert await going.send(links[1], order(9), state=TransactionalState(txn_id=txn_id)) is None
            on_loop(server, lambda: server.namespace.outages.begin(queue, OutageKind.SILENT, 600))
            for link in links:
                link.send(order(1))
            going.session.attach_receiver("r", source=Source(address=queue), target=Target(address="here"))
            coordinator.link.send(build(body=value(Discharge(txn_id=txn_id, fail=False))))
            request = Properties(message_id="1", reply_to="answers")
            operation = {"operation": "com.microsoft:peek-message"}
            asked.send(build(properties=request, application_properties=operation, body=value({})))
            connection = connected(server)
            head = f"POST /{queue}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('')}\r\n"
            connection.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
            await until(lambda: waiting(server) == 6)
            connection.close()
            await until(lambda: waiting(server) == 5)
            going.peer.transport.abort()
            await until(lambda: waiting(server) == 1)
            [outage] = on_loop(server, server.namespace.outages.end)
            assert outage.is_over
            await staying.until(lambda: staying.noted(SendsUpdated))
