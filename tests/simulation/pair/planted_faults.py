"""Faults to plant in the pairing code: each violates one guarantee, and the check of that guarantee must find it."""
# ruff: noqa: ANN401, SLF001  # arguments are passed on unchanged; faults are planted in private methods

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.pair import simulation
from tests.simulation.pair.settings import plan_of
from twinbus.client import errors
from twinbus.client.errors import ConnectionFailed, may_have_happened
from twinbus.client.pairing import send_operation as paired_sending
from twinbus.client.pairing import sender as paired_sender
from twinbus.client.pairing.backlog import rewriting
from twinbus.client.pairing.failover.pings import Pings
from twinbus.client.pairing.spool import index, spool
from twinbus.client.pairing.syphon import backlog_consumer
from twinbus.client.pairing.syphon.destination import Destination
from twinbus.client.pairing.syphon.pump import Pump
from twinbus.client.sender import MessageSender
from twinbus.model.errors import EntityDisabled, MessageTooLarge, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.pair.settings import Settings


class Patch:
    """Sets attributes permanently, without pytest."""

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)

    def setitem(self, owner: Any, name: Any, value: Any) -> None:
        owner[name] = value


def spooled_messages_thrown_away(patch: Any) -> None:
    async def wrong(*_: Any, **__: Any) -> None:
        return

    patch.setattr(paired_sender.SendAvailabilitySender, "send_spooled", wrong)


def spooled_before_it_is_on_disk(patch: Any) -> None:
    append = spool.Spool.append

    async def wrong(self: Any, record: Any) -> None:
        task = asyncio.ensure_future(append(self, record))
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    patch.setattr(spool.Spool, "append", wrong)


def failures_taken_for_success_by_the_pump(patch: Any) -> None:
    patch.setattr(Destination, "_on_failure", lambda self, load, _error: self._on_accepted(load))


def uncertain_sends_reported_as_not_sent(patch: Any) -> None:
    deliver = MessageSender.deliver

    async def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        try:
            await deliver(self, *arguments, **options)
        except ServiceBusError as error:
            if may_have_happened(error):
                raise ConnectionFailed("it was not sent, says somebody who cannot know") from None
            raise

    patch.setattr(MessageSender, "deliver", wrong)


def marks_forgotten(patch: Any) -> None:
    restore = rewriting.restore

    def wrong(*arguments: Any, **options: Any) -> Any:
        restored = restore(*arguments, **options)
        if isinstance(restored, rewriting.RestoredMessage):
            restored.payload = restored.payload.replace(b"x-ms-possible-duplicate", b"x-ms-parked-duplicate!!")
        return restored

    patch.setattr(backlog_consumer, "restore", wrong)


def duplicates_not_detected(patch: Any) -> None:
    create = simulation.PairSimulation.create

    async def wrong(self: Any, plan: Any) -> None:
        description = {name: value for name, value in plan.description.items() if "duplicate" not in name}
        await create(self, type(plan)(plan.path, plan.sessions, description, plan.is_topic))

    patch.setattr(simulation.PairSimulation, "create", wrong)


def batches_reversed(patch: Any) -> None:
    load = Destination._next_batch
    patch.setattr(Destination, "_next_batch", lambda self: load(self)[::-1])


def spool_out_of_order(patch: Any) -> None:
    patch.setattr(index.SpoolIndex, "holds_sessions", lambda *_: False)
    patch.setattr(paired_sender, "session_ids_of", lambda _messages: [])
    patch.setattr(paired_sending, "session_ids_of", lambda _messages: [])


def disabled_taken_for_a_fault_of_the_message(patch: Any) -> None:
    patch.setitem(errors._ERROR_BY_CONDITION, EntityDisabled.condition, MessageTooLarge)


def label_changed(patch: Any) -> None:
    restore = rewriting.restore

    def wrong(*arguments: Any, **options: Any) -> Any:
        restored = restore(*arguments, **options)
        if isinstance(restored, rewriting.RestoredMessage):
            restored.payload = restored.payload.replace(b"letter", b"Letter")
        return restored

    patch.setattr(backlog_consumer, "restore", wrong)


def pump_asleep(patch: Any) -> None:
    async def wrong(*_: Any) -> None:
        await asyncio.sleep(1e6)

    patch.setattr(Pump, "_wait_for_primary", wrong)


def pings_raise(patch: Any) -> None:
    async def wrong(*_: Any) -> None:
        raise ValueError("a ping of the wrong kind")

    patch.setattr(Pings, "_ping", wrong)


def parking_raises(patch: Any) -> None:
    async def wrong(*_: Any) -> None:
        raise KeyError("backlog")

    patch.setattr(paired_sending.SendOperation, "park_whole", wrong)


def sends_outlast_their_timeout(patch: Any) -> None:
    dispatch = paired_sender.SendAvailabilitySender._send_encoded

    async def wrong(self: Any, *arguments: Any) -> None:
        await asyncio.sleep(30)
        await dispatch(self, *arguments)

    patch.setattr(paired_sender.SendAvailabilitySender, "_send_encoded", wrong)


@dataclass(frozen=True)
class PlantedFault:
    """A fault, the check that must find it, and the outages under which it is found soon."""

    apply: Callable[[Any], None]
    check: str
    only: tuple[str, ...]
    entities: tuple[str, ...] = ("orders",)
    has_spool: bool = False
    first: int = 0
    """First seed: a fault that needs a rare moment is found late."""

    def change(self, settings: Settings) -> None:
        """Change the settings to a small run with few other events."""
        settings.outages, settings.most_at_once = 6, 2
        settings.mean_pause_s, settings.mean_gap_s = 3.0, 2.0
        settings.operation_timeout_s, settings.failover_interval_s = 5.0, 0.0
        settings.entities = [plan_of(path) for path in self.entities]
        settings.has_spool, settings.disk_s = self.has_spool, 0.5
        settings.only_fault_kinds = frozenset(self.only)
        settings.pair["failover_interval"] = 0.0
        settings.pair["ping_primary_interval"] = 1.0
        settings.pair["primary_attempt_timeout"] = 1.0


BOTH_DOWN: Final = ("connections refused", "namespace killed")
FAULTS: Final = (
    PlantedFault(spooled_messages_thrown_away, "LOST", BOTH_DOWN, has_spool=True),
    PlantedFault(spooled_before_it_is_on_disk, "LOST", (*BOTH_DOWN, "program killed"), has_spool=True, first=8),
    PlantedFault(
        failures_taken_for_success_by_the_pump, "LOST", ("disk full", "connections refused"), ("orders", "carts")
    ),
    PlantedFault(uncertain_sends_reported_as_not_sent, "UNTRUTHFUL", ("answers lost",)),
    PlantedFault(marks_forgotten, "UNMARKED", ("answers lost",)),
    PlantedFault(duplicates_not_detected, "DOUBLED", ("answers lost",), ("once",)),
    PlantedFault(batches_reversed, "ORDER", ("disk full",), ("carts",)),
    PlantedFault(spool_out_of_order, "ORDER", BOTH_DOWN, ("carts",), has_spool=True),
    PlantedFault(disabled_taken_for_a_fault_of_the_message, "DEAD-LETTERED", ("entity disabled", "disk full")),
    PlantedFault(label_changed, "CHANGED", ("disk full",)),
    PlantedFault(pump_asleep, "STUCK", ("connections refused",)),
    PlantedFault(pings_raise, "DIED", ("disk full",)),
    PlantedFault(parking_raises, "ERROR", ("disk full",)),
    PlantedFault(sends_outlast_their_timeout, "LATE", ("connections cut",)),
)
