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

from twinbus.broker.ports.peer_protocol import Health, Weigh, Weighed
from twinbus.broker.remote.owner import Owner, RemoteStore
from twinbus.broker.remote.part import RemotePart
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.server.peers.channel import ANSWERS, CALLS, Channel
from twinbus.server.peers.desk import Desk
from twinbus.server.peers.managing import manage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.ports.peer_protocol import Answer
    from twinbus.server.administration import Administration
    from twinbus.server.peers.transport import Transport

    Respond: TypeAlias = Callable[[int, Health], None]

_NOTICE = 0


class HealthReport:
    """One for a process."""

    def __init__(self, namespace: Namespace) -> None:
        """Nobody is told yet."""
        self._namespace = namespace
        self._told: dict[Respond, Health] = {}

    def greet(self, respond: Respond) -> None:
        """Another process has come, and hears what is said by `respond`."""
        self._tell(respond, self._health())

    def forget(self, respond: Respond) -> None:
        """It has gone."""
        self._told.pop(respond, None)

    def look(self) -> None:
        """Tell those who do not know how it is now."""
        now = self._health()
        for respond, told in list(self._told.items()):
            if told != now:
                self._tell(respond, now)

    def _tell(self, respond: Respond, health: Health) -> None:
        self._told[respond] = health
        respond(_NOTICE, health)

    def _health(self) -> Health:
        own = {
            number: (journal.trouble, journal.refusal)
            for number, journal in enumerate(self._namespace.journals)
            if not isinstance(journal, RemoteStore)
        }
        return Health(own)


log: Final = logging.getLogger(__name__)

RETRY_S: Final = (0.02, 0.5)
"""How soon one that has gone is looked for again: at first, and at last."""
HEALTH_S: Final = 0.2
"""How often the others are told where a store of this process began or ceased to work."""
REFRESH_S: Final = 1.0
"""How long is waited for what others hold."""


class Peers:
    """All other processes."""

    def __init__(
        self, namespace: Namespace, *, number: int, workers: int, transport: Transport, timeout_s: float = 10.0
    ) -> None:
        """`transport` reaches them. A caller waits for an answer from one of them for `timeout_s`."""
        self._namespace = namespace
        self._number = number
        self._transport = transport
        self._owners = {
            other: Owner(f"broker process {other}", clock=namespace.clock, timers=namespace.timers, timeout_s=timeout_s)
            for other in range(workers)
            if other != number
        }
        self._visiting: dict[Channel, Desk] = {}
        self._health = HealthReport(namespace)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.AbstractServer | None = None
        self._is_reached: dict[int, asyncio.Event] = {}

    def owner(self, number: int) -> Owner:
        """Another process, by its number."""
        return self._owners[number]

    async def start(self, administration: Administration) -> None:
        """Let the others ask, and find them. What is here is loaded by now."""
        loop = asyncio.get_running_loop()
        self._server = await self._transport.listen(self._number, partial(self._admit, administration))
        self._is_reached = {other: asyncio.Event() for other in self._owners}
        self._tasks = [loop.create_task(self._keep(other, owner)) for other, owner in self._owners.items()]
        self._tasks.append(loop.create_task(self._tell_health()))

    async def wait(self, timeout_s: float) -> None:
        """Until all others were reached once, or for so long."""
        reached = [asyncio.ensure_future(event.wait()) for event in self._is_reached.values()]
        if reached:
            _, late = await asyncio.wait(reached, timeout=timeout_s)
            for one in late:
                one.cancel()

    async def close(self) -> None:
        """Leave all of them."""
        for task in self._tasks:
            task.cancel()
        for channel in list(self._visiting):
            channel.close()
        if self._server is not None:
            self._server.close()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def _admit(self, administration: Administration) -> Channel:
        def leave() -> None:
            del self._visiting[channel]
            self._health.forget(channel.send)
            desk.close()

        def receive(number: int, word: object) -> None:
            desk.receive(number, word)  # type: ignore[arg-type]  # the channel's decoder knows calls only

        channel = Channel(CALLS, receive, leave)
        desk = Desk(self._namespace, channel.send, partial(manage, administration))
        self._visiting[channel] = desk
        self._health.greet(channel.send)
        return channel

    async def _tell_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            self._health.look()

    # --- the way to others --------------------------------------------------------------------------------------------

    async def _keep(self, number: int, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        pause_s, longest_s = RETRY_S
        while True:
            lost = loop.create_future()
            channel = Channel(ANSWERS, owner.receive, partial(_resolve, lost))
            try:
                await self._transport.connect(number, partial(_itself, channel))
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            pause_s = RETRY_S[0]
            owner.connected(channel.send)
            self._is_reached[number].set()
            log.info("broker process %d is there", number)
            try:
                await lost
            except asyncio.CancelledError:
                channel.close()
                raise
            owner.disconnected()
            log.warning("broker process %d is not there any more", number)

    # --- what others hold ---------------------------------------------------------------------------------------------

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Ask what the parts of entities hold that others have."""
        wanted: dict[Owner, list[int]] = {}
        parts: dict[tuple[int, int], RemotePart] = {}
        for entity in entities:
            for part in entity.parts:
                if isinstance(part, RemotePart):
                    parts[entity.entity_id, part.number] = part
                    ids = wanted.setdefault(part.owner, [])
                    if not ids or ids[-1] != entity.entity_id:
                        ids.append(entity.entity_id)
        answers = await asyncio.gather(*[_weigh(owner, ids) for owner, ids in wanted.items()])
        weights = [weight for answer in answers if answer is not None for weight in answer.parts]
        for weight in weights:
            known = parts.pop((weight.entity, weight.fragment), None)
            if known is not None:
                known.known = msgspec.convert(weight.runtime, QueueRuntime)
        for silent in parts.values():  # their owners have not answered
            silent.known = replace(silent.known, is_available=False)


async def _weigh(owner: Owner, ids: list[int]) -> Weighed | None:
    answered: asyncio.Future[Answer | ServiceBusError] = asyncio.get_running_loop().create_future()
    with suppress(ServiceBusError, TimeoutError):
        owner.ask(Weigh(ids), partial(_resolve, answered))
        answer = await asyncio.wait_for(answered, REFRESH_S)
        return answer if isinstance(answer, Weighed) else None
    return None


def _itself(channel: Channel) -> Channel:
    return channel


def _resolve(future: asyncio.Future[Any], result: object = None) -> None:
    """Whoever waited may have given up."""
    if not future.done():
        future.set_result(result)
