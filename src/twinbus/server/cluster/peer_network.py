"""The other processes of a namespace, as one of them knows them.

Owns: the way to each, which is kept for as long as this process lives: where one has gone it is looked for until it is
back. The others connect to it (`transport`): on the connection of another one it is asked (`Desk`), on its own
connection to that one it asks (`Owner`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from twinbus.broker.ports.peer_protocol import GetRuntimes, Runtimes, StoreHealth
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.remote.peer_client import PeerClient, RemoteStore
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER, MessageChannel
from twinbus.server.cluster.peer_server import PeerServer, handle_management

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.ports.peer_protocol import Reply
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.cluster.transport import Transport

    SendHealth: TypeAlias = Callable[[int, StoreHealth], None]

NOTICE_ID = 0


class HealthPublisher:
    """One for a process."""

    def __init__(self, namespace: Namespace) -> None:
        """Nobody is told yet."""
        self._namespace = namespace
        self._published: dict[SendHealth, StoreHealth] = {}

    def add_peer(self, send: SendHealth) -> None:
        """Another process has come, and hears what is said by `respond`."""
        self._publish(send, self._current_health())

    def remove_peer(self, send: SendHealth) -> None:
        """It has gone."""
        self._published.pop(send, None)

    def publish_changes(self) -> None:
        """Tell those who do not know how it is now."""
        now = self._current_health()
        for respond, told in list(self._published.items()):
            if told != now:
                self._publish(respond, now)

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
"""How soon one that has gone is looked for again: at first, and at last."""
HEALTH_INTERVAL_S: Final = 0.2
"""How often the others are told where a store of this process began or ceased to work."""
REFRESH_TIMEOUT_S: Final = 1.0
"""How long is waited for what others hold."""


class PeerNetwork:
    """All other processes."""

    def __init__(
        self, namespace: Namespace, *, worker_number: int, workers: int, transport: Transport, timeout_s: float = 10.0
    ) -> None:
        """`transport` reaches them. A caller waits for an answer from one of them for `timeout_s`."""
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
        self._health_publisher = HealthPublisher(namespace)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.AbstractServer | None = None
        self._connected: dict[int, asyncio.Event] = {}

    def client(self, number: int) -> PeerClient:
        """Another process, by its number."""
        return self._clients[number]

    async def start(self, administration: Administration) -> None:
        """Let the others ask, and find them. What is here is loaded by now."""
        loop = asyncio.get_running_loop()
        self._server = await self._transport.listen(self._worker_number, partial(self._accept, administration))
        self._connected = {other: asyncio.Event() for other in self._clients}
        self._tasks = [loop.create_task(self._keep_connected(other, owner)) for other, owner in self._clients.items()]
        self._tasks.append(loop.create_task(self._publish_health()))

    async def wait_connected(self, timeout_s: float) -> None:
        """Until all others were reached once, or for so long."""
        reached = [asyncio.ensure_future(event.wait()) for event in self._connected.values()]
        if reached:
            _, late = await asyncio.wait(reached, timeout=timeout_s)
            for one in late:
                one.cancel()

    async def close(self) -> None:
        """Leave all of them."""
        for task in self._tasks:
            task.cancel()
        for channel in list(self._servers):
            channel.close()
        if self._server is not None:
            self._server.close()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def _accept(self, administration: Administration) -> MessageChannel:
        def leave() -> None:
            del self._servers[channel]
            self._health_publisher.remove_peer(channel.send)
            desk.close()

        def receive(number: int, word: object) -> None:
            desk.receive(number, word)  # type: ignore[arg-type]  # the channel's decoder knows calls only

        channel = MessageChannel(REQUEST_DECODER, receive, leave)
        desk = PeerServer(self._namespace, channel.send, partial(handle_management, administration))
        self._servers[channel] = desk
        self._health_publisher.add_peer(channel.send)
        return channel

    async def _publish_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            self._health_publisher.publish_changes()

    # --- the way to others --------------------------------------------------------------------------------------------

    async def _keep_connected(self, number: int, client: PeerClient) -> None:
        loop = asyncio.get_running_loop()
        pause_s, longest_s = RECONNECT_S
        while True:
            lost = loop.create_future()
            channel = MessageChannel(REPLY_DECODER, client.receive, partial(_resolve, lost))
            try:
                await self._transport.connect(number, partial(_return_channel, channel))
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            pause_s = RECONNECT_S[0]
            client.on_connected(channel.send)
            self._connected[number].set()
            log.info("broker process %d is there", number)
            try:
                await lost
            except asyncio.CancelledError:
                channel.close()
                raise
            client.on_disconnected()
            log.warning("broker process %d is not there any more", number)

    # --- what others hold ---------------------------------------------------------------------------------------------

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Ask what the parts of entities hold that others have."""
        wanted: dict[PeerClient, list[int]] = {}
        parts: dict[tuple[int, int], RemotePart] = {}
        for entity in entities:
            for part in entity.parts:
                if isinstance(part, RemotePart):
                    parts[entity.entity_id, part.number] = part
                    ids = wanted.setdefault(part.owner, [])
                    if not ids or ids[-1] != entity.entity_id:
                        ids.append(entity.entity_id)
        answers = await asyncio.gather(*[_request_runtimes(owner, ids) for owner, ids in wanted.items()])
        weights = [weight for answer in answers if answer is not None for weight in answer.fragments]
        for weight in weights:
            known = parts.pop((weight.entity_id, weight.fragment), None)
            if known is not None:
                known.last_runtime = msgspec.convert(weight.runtime, QueueRuntime)
        for silent in parts.values():  # their owners have not answered
            silent.last_runtime = replace(silent.last_runtime, is_available=False)


async def _request_runtimes(client: PeerClient, entity_ids: list[int]) -> Runtimes | None:
    answered: asyncio.Future[Reply | ServiceBusError] = asyncio.get_running_loop().create_future()
    with suppress(ServiceBusError, TimeoutError):
        client.send_request(GetRuntimes(entity_ids), partial(_resolve, answered))
        answer = await asyncio.wait_for(answered, REFRESH_TIMEOUT_S)
        return answer if isinstance(answer, Runtimes) else None
    return None


def _return_channel(channel: MessageChannel) -> MessageChannel:
    return channel


def _resolve(future: asyncio.Future[Any], result: object = None) -> None:
    """Whoever waited may have given up."""
    if not future.done():
        future.set_result(result)
