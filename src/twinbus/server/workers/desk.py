"""What workers ask of the supervisor, on behalf of their clients.

Owns: which request is for what. What there is only once in a namespace is here: the catalogue (`Keeper`), the outages
that somebody switched on, and the reports of paired clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.clock import Times
from twinbus.broker.ports.outage import Outages
from twinbus.model.outage import EVERYTHING, SHORTEST_S
from twinbus.model.path import key_of
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.outage_node import told
from twinbus.server.pairing import Pairings
from twinbus.server.system_clock import TimerDrive
from twinbus.server.workers.words import (
    BeginOutage,
    CreateEntity,
    CreateRule,
    CreateSubscription,
    DeleteEntity,
    DeleteRule,
    DropReport,
    EndOutage,
    ListPrimaries,
    OutageBegun,
    OutageEnded,
    PutReport,
    UpdateEntity,
    UpdateRule,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.broker.clock import Clock
    from twinbus.broker.ports.outage import Outage
    from twinbus.server.keeper import Keeper
    from twinbus.server.workers.words import AnyChange, ReadReports, Request


class Desk:
    """Who answers them."""

    def __init__(self, keeper: Keeper, clock: Clock, publish: Callable[[AnyChange], Awaitable[None]]) -> None:
        """On the running loop. `publish` has a change made by all workers."""
        timers = Times(clock).timers
        self.drive = TimerDrive(timers)
        self._keeper = keeper
        self._clock = clock
        self._publish = publish
        self._outages = Outages(clock, timers, keeper.entities)
        self._pairings = Pairings(clock, timers)

    async def answer(self, request: Request) -> object:  # noqa: PLR0911  # one for each kind of request
        """Do what is asked."""
        if isinstance(request, CreateEntity | CreateSubscription | UpdateEntity | DeleteEntity):
            return await self._change_entity(request)
        if isinstance(request, CreateRule | UpdateRule | DeleteRule):
            return await self._change_rule(request)
        if isinstance(request, BeginOutage):
            outage = self._outages.begin(request.path, request.kind, request.seconds)
            await self._publish(self._begun(outage))
            return told(outage)
        if isinstance(request, EndOutage):
            ended = self._outages.end(request.path)
            await self._publish(OutageEnded(request.path))
            return [told(one) for one in ended]
        if isinstance(request, PutReport):
            self._pairings.put(request.report)
            return None
        if isinstance(request, DropReport):
            self._pairings.leave(request.leave)
            return None
        if isinstance(request, ListPrimaries):
            return list(self._pairings.primaries())
        return self._read(request)

    def outages(self) -> list[OutageBegun]:
        """Those that are on, for who has not heard of them."""
        entities = self._keeper.entities
        return [
            self._begun(one) for one in self._outages.all() if one.path == EVERYTHING or key_of(one.path) in entities
        ]

    async def _change_entity(self, request: CreateEntity | CreateSubscription | UpdateEntity | DeleteEntity) -> str:
        keeper = self._keeper
        if isinstance(request, DeleteEntity):
            return (await keeper.delete(request.path)).path
        description = request.described.read()
        if isinstance(request, UpdateEntity):
            return (await keeper.update(request.path, description)).path
        if isinstance(request, CreateEntity):
            return (await keeper.create(request.path, description)).path
        assert isinstance(description, SubscriptionDescription)
        return (await keeper.create_subscription(request.topic, request.name, description, request.rule)).path

    async def _change_rule(self, request: CreateRule | UpdateRule | DeleteRule) -> object:
        if isinstance(request, CreateRule):
            return await self._keeper.create_rule(request.subscription, request.rule)
        if isinstance(request, UpdateRule):
            return await self._keeper.update_rule(request.subscription, request.rule)
        await self._keeper.delete_rule(request.subscription, request.name)
        return None

    def _begun(self, outage: Outage) -> OutageBegun:
        seconds = max(SHORTEST_S, (outage.until_ms - self._clock.wall_ms()) / 1000)
        return OutageBegun(outage.path, outage.kind, seconds, outage.since_ms, outage.until_ms)

    def _read(self, request: ReadReports) -> object:
        return self._pairings.read_of(request.primaries, skip=request.skip, top=request.top)
