"""The connections between this process and all other processes of the namespace.

Owns: one connection to every other process, reconnected until this process exits, and the connections that other
processes open to this process. Requests arrive on connections opened by other processes (`PeerServer`); this process
sends its own requests on the connections that it opened (`PeerClient`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from twinbus.broker.ports.peer_protocol import GetRuntimes, GetStatus, Runtimes, Status, StoreHealth
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.remote.peer_client import PeerClient, RemoteStore
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER, MessageChannel
from twinbus.server.cluster.peer_server import PeerServer, handle_management, no_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.ports.peer_protocol import Reply, Request
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.cluster.peer_server import HandleStatus
    from twinbus.server.cluster.transport import Transport

    SendHealth: TypeAlias = Callable[[int, StoreHealth], None]

NOTICE_ID = 0


class HealthPublisher:
    """Sends the health of this process's stores to all connected processes."""

    def __init__(self, namespace: Namespace) -> None:
        """Create a publisher without peers."""
        self._namespace = namespace
        self._published: dict[SendHealth, StoreHealth] = {}
        """The health that was last sent to each peer."""

    def add_peer(self, send: SendHealth) -> None:
        """Send the current health to a newly connected peer, and later also changes."""
        self._publish(send, self._current_health())

    def remove_peer(self, send: SendHealth) -> None:
        """Remove a peer that has disconnected."""
        self._published.pop(send, None)

    def publish_changes(self) -> None:
        """Send the current health to each peer that does not have it yet."""
        current = self._current_health()
        for send, published in list(self._published.items()):
            if published != current:
                self._publish(send, current)

    def _publish(self, send: SendHealth, health: StoreHealth) -> None:
        self._published[send] = health
        send(NOTICE_ID, health)

    def _current_health(self) -> StoreHealth:
        own = {
            number: (journal.unavailable_reason, journal.disk_full_reason)
            for number, journal in enumerate(self._namespace.stores)
            if not isinstance(journal, RemoteStore)
        }
        return StoreHealth(own)


log: Final = logging.getLogger(__name__)

RECONNECT_S: Final = (0.02, 0.5)
"""The first and the longest pause before reconnecting to a process."""
HEALTH_INTERVAL_S: Final = 0.2
"""How often changes in the health of this process's stores are sent to the other processes."""
REFRESH_TIMEOUT_S: Final = 1.0
"""How long to wait for the counters of fragments in other processes."""


class PeerNetwork:
    """The connections to and from all other processes."""

    def __init__(
        self, namespace: Namespace, *, worker_number: int, workers: int, transport: Transport, timeout_s: float = 10.0
    ) -> None:
        """Create a network that is not connected yet; a request to another process times out after `timeout_s`."""
        self._namespace = namespace
        self._worker_number = worker_number
        self._transport = transport
        self._clients = {
            other: PeerClient(
                f"broker process {other}", clock=namespace.clock, timers=namespace.timers, timeout_s=timeout_s
            )
            for other in range(workers)
            if other != worker_number
        }
        self._servers: dict[MessageChannel, PeerServer] = {}
        self.handle_status: HandleStatus = no_status
        """The function that carries out requests of the JSON API from other processes; the API sets it."""
        self.number = worker_number
        self.numbers = tuple(range(workers))
        self._health_publisher = HealthPublisher(namespace)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.AbstractServer | None = None
        self._connected: dict[int, asyncio.Event] = {}

    def client(self, number: int) -> PeerClient:
        """Return the client for the process `number`."""
        return self._clients[number]

    async def start(self, administration: Administration) -> None:
        """Accept requests from other processes and connect to them. This process must have loaded its fragments."""
        loop = asyncio.get_running_loop()
        self._server = await self._transport.listen(self._worker_number, partial(self._accept, administration))
        self._connected = {other: asyncio.Event() for other in self._clients}
        self._tasks = [loop.create_task(self._keep_connected(other, client)) for other, client in self._clients.items()]
        self._tasks.append(loop.create_task(self._publish_health()))

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until every other process has been connected once, or until the timeout."""
        waits = [asyncio.ensure_future(event.wait()) for event in self._connected.values()]
        if waits:
            _, unfinished = await asyncio.wait(waits, timeout=timeout_s)
            for wait in unfinished:
                wait.cancel()

    async def close(self) -> None:
        """Close all connections, and stop reconnecting and listening."""
        for task in self._tasks:
            task.cancel()
        for channel in list(self._servers):
            channel.close()
        if self._server is not None:
            self._server.close()

    # --- connections from other processes -----------------------------------------------------------------------------

    def _accept(self, administration: Administration) -> MessageChannel:
        def on_lost() -> None:
            del self._servers[channel]
            self._health_publisher.remove_peer(channel.send)
            peer_server.close()

        def on_message(request_id: int, request: object) -> None:
            peer_server.receive(request_id, request)  # type: ignore[arg-type]  # the decoder returns requests only

        channel = MessageChannel(REQUEST_DECODER, on_message, on_lost)
        peer_server = PeerServer(
            self._namespace,
            channel.send,
            partial(handle_management, administration),
            self.handle_status,
        )
        self._servers[channel] = peer_server
        self._health_publisher.add_peer(channel.send)
        return channel

    async def _publish_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            self._health_publisher.publish_changes()

    # --- connections to other processes -------------------------------------------------------------------------------

    async def _keep_connected(self, number: int, client: PeerClient) -> None:
        loop = asyncio.get_running_loop()
        pause_s, max_pause_s = RECONNECT_S
        while True:
            lost = loop.create_future()
            channel = MessageChannel(REPLY_DECODER, client.receive, partial(_resolve, lost))
            try:
                await self._transport.connect(number, partial(_return_channel, channel))
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, max_pause_s)
                continue
            pause_s = RECONNECT_S[0]
            client.on_connected(channel.send)
            self._connected[number].set()
            log.info("connected to broker process %d", number)
            try:
                await lost
            except asyncio.CancelledError:
                channel.close()
                raise
            client.on_disconnected()
            log.warning("lost the connection to broker process %d", number)

    # --- the JSON API -------------------------------------------------------------------------------------------------

    def owner_of(self, store: int) -> int:
        """Return the number of the process that owns a store."""
        return store % len(self.numbers)

    async def call(self, number: int, request: bytes) -> bytes | None:
        """Send a request of the JSON API to another process; return None if the process does not reply in time."""
        reply = await _request_reply(self._clients[number], GetStatus(request))
        return reply.content if isinstance(reply, Status) else None

    # --- counters of remote fragments ---------------------------------------------------------------------------------

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Update the counters of the entities' fragments that other processes own.

        Fragments in processes that do not reply count as unavailable.
        """
        ids_by_owner: dict[PeerClient, list[int]] = {}
        parts: dict[tuple[int, int], RemotePart] = {}
        for entity in entities:
            for part in entity.parts:
                if isinstance(part, RemotePart):
                    parts[entity.entity_id, part.number] = part
                    ids = ids_by_owner.setdefault(part.owner, [])
                    if not ids or ids[-1] != entity.entity_id:
                        ids.append(entity.entity_id)
        replies = await asyncio.gather(*[_request_runtimes(owner, ids) for owner, ids in ids_by_owner.items()])
        runtimes = [runtime for reply in replies if reply is not None for runtime in reply.fragments]
        for runtime in runtimes:
            replied = parts.pop((runtime.entity_id, runtime.fragment), None)
            if replied is not None:
                replied.last_runtime = msgspec.convert(runtime.runtime, QueueRuntime)
        for unanswered in parts.values():
            unanswered.last_runtime = replace(unanswered.last_runtime, is_available=False)


async def _request_runtimes(client: PeerClient, entity_ids: list[int]) -> Runtimes | None:
    reply = await _request_reply(client, GetRuntimes(entity_ids))
    return reply if isinstance(reply, Runtimes) else None


async def _request_reply(client: PeerClient, request: Request) -> Reply | ServiceBusError | None:
    """Send a request; return None if the process is not connected or does not reply in time."""
    future: asyncio.Future[Reply | ServiceBusError] = asyncio.get_running_loop().create_future()
    with suppress(ServiceBusError, TimeoutError):
        client.send_request(request, partial(_resolve, future))
        return await asyncio.wait_for(future, REFRESH_TIMEOUT_S)
    return None


def _return_channel(channel: MessageChannel) -> MessageChannel:
    return channel


def _resolve(future: asyncio.Future[Any], result: object = None) -> None:
    """Set the result, unless the waiting caller was cancelled."""
    if not future.done():
        future.set_result(result)
