"""Qpid Proton peers of the interoperability tests. Proton's Python binding blocks, so each peer runs in its own thread.

A peer ends when its connection has ended, and raises TimeoutError if that takes longer than its time limit.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from proton import Connection, Sender, SSLDomain

REALM, USER, PASSWORD = "interop", "bob", "builder"
FRAME_SIZE = 65_536

ProtonEvent: TypeAlias = Any
"""Proton declares every part of an event optional; the type of the event decides which parts exist."""
Options: TypeAlias = Any
"""Options of proton's Container.connect."""


class ProtonPeer(MessagingHandler):
    """A container with one connection."""

    time_limit_s = 15.0

    def __init__(self, *, prefetch: int = 0, auto_accept: bool = True) -> None:
        super().__init__(prefetch=prefetch, auto_accept=auto_accept)
        self.failures: list[str] = []
        self.is_late = False

    def on_start(self, event: ProtonEvent) -> None:
        self.limit = event.container.schedule(self.time_limit_s, _TimeLimit(self))
        self.start(event.container)

    def start(self, container: Container) -> None:
        """Connect or listen."""
        raise NotImplementedError

    def on_transport_error(self, event: ProtonEvent) -> None:
        self.failures.append(event.transport.condition.name)

    def on_transport_closed(self, event: ProtonEvent) -> None:
        """Let the container end: this is the last event of a connection."""
        self.limit.cancel()
        _ = event.container.timer_deadline  # reading it removes the cancelled timer

    def run(self) -> None:
        Container(self).run()
        if self.is_late:
            raise TimeoutError(f"{type(self).__name__} has not ended within {self.time_limit_s} s: {self.failures}")


class _TimeLimit(MessagingHandler):
    def __init__(self, peer: ProtonPeer) -> None:
        super().__init__()
        self.peer = peer

    def on_timer_task(self, event: ProtonEvent) -> None:
        self.peer.is_late = True
        event.container.stop()


class ProtonClient(ProtonPeer):
    """Connects and closes; subclasses decide what happens in between."""

    def __init__(self, port: int, *, prefetch: int = 0, auto_accept: bool = True, **options: Options) -> None:
        super().__init__(prefetch=prefetch, auto_accept=auto_accept)
        self.url = f"{'amqps://localhost' if 'ssl_domain' in options else '127.0.0.1'}:{port}"
        self.options = {"reconnect": False, "max_frame_size": FRAME_SIZE, **options}
        self.was_open = False

    def start(self, container: Container) -> None:
        self.open_links(container, container.connect(self.url, **self.options))

    def open_links(self, container: Container, connection: Connection) -> None:
        """Attach links, before the server has answered anything."""

    def on_connection_opened(self, _event: ProtonEvent) -> None:
        self.was_open = True


class ProtonEchoClient(ProtonClient):
    """Sends bodies to an address, receives as many from it, and closes when all are accepted and received."""

    def __init__(self, port: int, bodies: Sequence[str], *, address: str = "echo", **options: Options) -> None:
        super().__init__(port, prefetch=500, **options)
        self.bodies = bodies
        self.address = address
        self.sent = 0
        self.accepted = 0
        self.received: list[object] = []

    def open_links(self, container: Container, connection: Connection) -> None:
        container.create_sender(connection, self.address)
        container.create_receiver(connection, self.address)

    def on_sendable(self, event: ProtonEvent) -> None:
        while self.sent < len(self.bodies) and event.sender.credit:
            event.sender.send(Message(body=self.bodies[self.sent]))
            self.sent += 1

    def on_accepted(self, event: ProtonEvent) -> None:
        self.accepted += 1
        self.close_when_done(event)

    def on_message(self, event: ProtonEvent) -> None:
        self.received.append(event.message.body)
        self.close_when_done(event)

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.accepted == len(self.received) == len(self.bodies):
            event.connection.close()


class ProtonServer(ProtonPeer):
    """Listens for one connection; the binding answers open, begin and attach."""

    def __init__(self, *, prefetch: int = 0, auto_accept: bool = True, ssl_domain: SSLDomain | None = None) -> None:
        super().__init__(prefetch=prefetch, auto_accept=auto_accept)
        self.ssl_domain = ssl_domain
        self.port: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.user: str | None = None

    def start(self, container: Container) -> None:
        self.acceptor = container.acceptor("127.0.0.1", "0")
        if self.ssl_domain is not None:
            self.acceptor.set_ssl_domain(self.ssl_domain)
        port: int = self.acceptor._selectable.getsockname()[1]  # noqa: SLF001  # the binding has no public attribute for it
        self.port.set_result(port)

    def on_connection_bound(self, event: ProtonEvent) -> None:
        event.transport.max_frame_size = FRAME_SIZE
        event.transport.sasl().allow_insecure_mechs = True

    def on_connection_opened(self, event: ProtonEvent) -> None:
        self.user = event.transport.user

    def on_link_opening(self, event: ProtonEvent) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode

    def on_transport_closed(self, event: ProtonEvent) -> None:
        self.acceptor.close()
        super().on_transport_closed(event)


class ProtonEchoServer(ProtonServer):
    """Delivers messages sent to an address to the receiver of that address."""

    def __init__(self, *, window: int = 500, ssl_domain: SSLDomain | None = None) -> None:
        super().__init__(prefetch=window, ssl_domain=ssl_domain)
        self.senders: dict[str | None, Sender] = {}
        self.waiting: dict[str | None, collections.deque[Message]] = collections.defaultdict(collections.deque)

    def on_link_opening(self, event: ProtonEvent) -> None:
        super().on_link_opening(event)
        if event.link.is_sender:
            self.senders[event.link.source.address] = event.link

    def on_message(self, event: ProtonEvent) -> None:
        address = event.link.target.address
        self.waiting[address].append(event.message)
        if address in self.senders:
            self.pump(self.senders[address])

    def on_sendable(self, event: ProtonEvent) -> None:
        self.pump(event.link)

    def pump(self, sender: Sender) -> None:
        waiting = self.waiting[sender.source.address]
        while waiting and sender.credit:
            sender.send(waiting.popleft())


async def run(peer: ProtonPeer) -> None:
    """Run `peer` to its end."""
    await asyncio.to_thread(peer.run)


@asynccontextmanager
async def running(server: ProtonServer) -> AsyncIterator[int]:
    """Run `server`; yield its port, and wait for its end."""
    ended = asyncio.ensure_future(run(server))
    try:
        async with asyncio.timeout(server.time_limit_s):
            port = await asyncio.wrap_future(server.port)
        yield port
    finally:
        await ended
