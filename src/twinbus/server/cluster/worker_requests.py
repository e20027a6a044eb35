"""Requests that workers send to the supervisor on behalf of their clients.

Owns: the handlers of these requests, and the state that exists once per namespace: rehearsed outages and the reports
from paired clients. Changes to entities go to the `CatalogueService`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.broker.clock import TimeServices
from twinbus.broker.ports.outage import Outages
from twinbus.model.outage import ALL_ENTITIES, MIN_OUTAGE_S
from twinbus.model.path import canonical_key
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.amqp.outage_node import describe_outage
from twinbus.server.cluster.control_protocol import (
    BeginOutage,
    CreateEntity,
    CreateRule,
    CreateSubscription,
    DeleteEntity,
    DeleteRule,
    EndOutage,
    ListPrimaries,
    OutageBegun,
    OutageEnded,
    PutReport,
    ReadReports,
    RemoveReport,
    UpdateEntity,
    UpdateRule,
)
from twinbus.server.paired_clients.report_store import ReportStore
from twinbus.server.runtime.system_clock import TimerDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.broker.clock import Clock
    from twinbus.broker.ports.outage import Outage
    from twinbus.server.catalogue.service import CatalogueService
    from twinbus.server.cluster.control_protocol import AnyChange, Request


class WorkerRequestHandler:
    """Handles requests from workers in the supervisor."""

    def __init__(
        self, catalogue: CatalogueService, clock: Clock, publish: Callable[[AnyChange], Awaitable[None]]
    ) -> None:
        """Create a handler on the running event loop. `publish` applies a change in all workers."""
        timers = TimeServices(clock).timers
        self.timer_driver = TimerDriver(timers)
        self._catalogue = catalogue
        self._clock = clock
        self._publish = publish
        self._outages = Outages(clock, timers, catalogue.entities)
        self._report_store = ReportStore(clock, timers)
        self._handlers: dict[type, Callable[[Any], Awaitable[object]]] = {
            CreateEntity: self._create_entity,
            CreateSubscription: self._create_subscription,
            UpdateEntity: self._update_entity,
            DeleteEntity: self._delete_entity,
            CreateRule: self._create_rule,
            UpdateRule: self._update_rule,
            DeleteRule: self._delete_rule,
            BeginOutage: self._begin_outage,
            EndOutage: self._end_outage,
            PutReport: self._put_report,
            RemoveReport: self._remove_report,
            ListPrimaries: self._list_primaries,
            ReadReports: self._read_reports,
        }

    async def handle(self, request: Request) -> object:
        """Carry out a request and return its result."""
        return await self._handlers[type(request)](request)

    def active_outages(self) -> list[OutageBegun]:
        """Return the current rehearsed outages, for a worker that is starting."""
        entities = self._catalogue.entities
        return [
            self._outage_begun(outage)
            for outage in self._outages.all()
            if outage.path == ALL_ENTITIES or canonical_key(outage.path) in entities
        ]

    # --- the catalogue ------------------------------------------------------------------------------------------------

    async def _create_entity(self, request: CreateEntity) -> str:
        return (await self._catalogue.create(request.path, request.description.decode())).path

    async def _create_subscription(self, request: CreateSubscription) -> str:
        description = request.description.decode()
        assert isinstance(description, SubscriptionDescription)
        return (await self._catalogue.create_subscription(request.topic, request.name, description, request.rule)).path

    async def _update_entity(self, request: UpdateEntity) -> str:
        return (await self._catalogue.update(request.path, request.description.decode())).path

    async def _delete_entity(self, request: DeleteEntity) -> str:
        return (await self._catalogue.delete(request.path)).path

    async def _create_rule(self, request: CreateRule) -> object:
        return await self._catalogue.create_rule(request.subscription, request.rule)

    async def _update_rule(self, request: UpdateRule) -> object:
        return await self._catalogue.update_rule(request.subscription, request.rule)

    async def _delete_rule(self, request: DeleteRule) -> None:
        await self._catalogue.delete_rule(request.subscription, request.name)

    # --- outages ------------------------------------------------------------------------------------------------------

    async def _begin_outage(self, request: BeginOutage) -> object:
        outage = self._outages.begin(request.path, request.kind, request.seconds)
        await self._publish(self._outage_begun(outage))
        return describe_outage(outage)

    async def _end_outage(self, request: EndOutage) -> object:
        ended = self._outages.end(request.path)
        await self._publish(OutageEnded(request.path))
        return [describe_outage(outage) for outage in ended]

    def _outage_begun(self, outage: Outage) -> OutageBegun:
        seconds = max(MIN_OUTAGE_S, (outage.until_ms - self._clock.wall_ms()) / 1000)
        return OutageBegun(outage.path, outage.kind, seconds, outage.since_ms, outage.until_ms)

    # --- reports of paired clients ------------------------------------------------------------------------------------

    async def _put_report(self, request: PutReport) -> None:
        self._report_store.put(request.report)

    async def _remove_report(self, request: RemoveReport) -> None:
        self._report_store.remove(request.departure)

    async def _list_primaries(self, _request: ListPrimaries) -> list[str]:
        return list(self._report_store.primaries())

    async def _read_reports(self, request: ReadReports) -> object:
        return self._report_store.read_primaries(request.primaries, skip=request.skip, top=request.top)
