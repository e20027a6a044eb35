"""Simulated outages of a namespace in memory.

    namespace.outage.hang()
    ...
    namespace.outage.restore()

Owns the list of possible outages, and where each outage is applied. Several outages may be active at once; a new outage
of the network replaces the previous one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Queue, Topic
from twinbus.broker.ports.outage import Outage as RehearsedOutage
from twinbus.model.outage import OutageKind
from twinbus.model.path import canonical_key
from twinbus.server.runtime.disk_space import low_space_reason
from twinbus.testing.faults import Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.namespace import Namespace
    from twinbus.testing.disks import LoopDisks
    from twinbus.testing.loop import FakeTimeLoop

FAR_FUTURE_MS: Final = 3_600_000
"""Announced duration of a `busy` outage; the test ends it earlier."""
MIN_FREE_BYTES: Final = 2**30
"""Default of the option `--min-free`."""


class Outage:
    """Active outages of one namespace."""

    def __init__(
        self,
        loop: FakeTimeLoop,
        host: str,
        disks: LoopDisks,
        broker: Callable[[], Namespace | None],
        set_revoked: Callable[[bool], None],
    ) -> None:
        """Start without outages.

        `broker` returns the running broker, or None; `set_revoked` revokes or restores the clients' key.
        """
        self._loop = loop
        self._network = loop.network
        self._host = host
        self._disks = disks
        self._broker = broker
        self._set_revoked = set_revoked
        self._refusal_reason: str | None = None
        """Reason why the disks accept no messages, or None."""
        self._busy: dict[str, None] = {}
        self._full: dict[str, int] = {}
        """Original maximum size in MB of each queue or topic that is full now."""

    # --- the network --------------------------------------------------------------------------------------------------

    def stop(self, *, peer: str | None = None) -> None:
        """Cut all connections and refuse new ones, as if no server listened; the namespace itself keeps running."""
        self._network.refuse(self._host, peer=peer)

    def hang(self, *, peer: str | None = None, direction: Direction = Direction.BOTH) -> None:
        """Hold all bytes without an error, as in a network partition; `Direction.FROM` holds only the responses."""
        self._network.hang(self._host, peer=peer, direction=direction)

    def slow(self, delay_s: float, *, peer: str | None = None) -> None:
        """Delay all bytes by `delay_s` seconds in each direction."""
        self._network.slow(self._host, delay_s, peer=peer)

    def cut(self, *, peer: str | None = None) -> None:
        """Cut the current connections once; bytes in transit are lost."""
        self._network.cut(self._host, peer=peer)

    def cut_after(self, size: int, *, peer: str | None = None, direction: Direction = Direction.TO) -> None:
        """Cut each connection after `size` more bytes have arrived at the server (or client: `Direction.FROM`)."""
        self._network.cut_after(self._host, size, peer=peer, direction=direction)

    # --- the process --------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Freeze the namespace's process, including its timers, as by SIGSTOP."""
        self._loop.freeze(self._host)

    # --- the namespace ------------------------------------------------------------------------------------------------

    def busy(self, *paths: str) -> None:
        """Refuse sends to these queues or topics with ServerBusy; raise EntityNotFound for an unknown path."""
        broker = self._broker()
        if broker is not None:
            for path in paths:
                broker.find_sendable(path)
        self._busy.update(dict.fromkeys(map(canonical_key, paths)))
        self.apply()

    def full(self, *paths: str) -> None:
        """Refuse sends to these queues or topics with QuotaExceeded; raise EntityNotFound for an unknown path."""
        broker = self._broker()
        if broker is None:
            raise RuntimeError("cannot make a queue full while the namespace is not running: start it first")
        for path in paths:
            self._full.setdefault(canonical_key(path), broker.find_sendable(path).description.max_size_mb)
        self.apply()

    def revoke_key(self) -> None:
        """Replace the clients' key on the server, as in a rotation; clients get Unauthorized."""
        self._set_revoked(True)  # noqa: FBT003  # the only argument

    # --- the disks ----------------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Fill the disks, so that sends are refused but settlements still work."""
        self._disks.fill()
        self._set_refusal_reason(low_space_reason(MIN_FREE_BYTES))

    def fail_store(self, number: int = 0) -> None:
        """Make a store fail at its next commit; it cannot be reopened before `restore`."""
        self._disks.fail(number)

    def hang_store(self, number: int = 0) -> None:
        """Make a store hang; after `store_timeout_s` it counts as unavailable."""
        self._disks.hang(number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """End all outages; the server reopens a failed store within half a minute."""
        self._loop.thaw(self._host)
        self._network.restore(self._host)
        self.give_key_back()
        self.restore_disks()
        self.no_longer(*self._busy, *self._full)

    def give_key_back(self) -> None:
        """Accept the clients' key again."""
        self._set_revoked(False)  # noqa: FBT003

    def restore_disks(self) -> None:
        """Clear all disk faults."""
        self._disks.restore()
        self._set_refusal_reason(None)

    def no_longer(self, *paths: str) -> None:
        """End the `busy` and `full` outages of these queues or topics."""
        self._apply_to_entities(paths, is_over=True)
        for path in paths:
            self._busy.pop(canonical_key(path), None)
            self._full.pop(canonical_key(path), None)

    def apply(self) -> None:
        """Apply the active outages to the broker; called after each start.

        A disk may have been filled or restored while the broker was starting.
        """
        self._set_refusal_reason(self._refusal_reason)
        self._apply_to_entities((*self._busy, *self._full), is_over=False)

    def _apply_to_entities(self, paths: Sequence[str], *, is_over: bool) -> None:
        broker = self._broker()
        if broker is None:
            return
        now_ms = broker.clock.wall_ms()
        for key in map(canonical_key, paths):
            entity = broker.entities.get(key)
            if entity is None:  # the entity was deleted in the meantime
                continue
            if key in self._busy:
                outage = RehearsedOutage(entity.path, OutageKind.BUSY, since_ms=now_ms, until_ms=now_ms + FAR_FUTURE_MS)
                entity.set_outage(None if is_over else outage)
            if key in self._full and isinstance(entity, Queue | Topic):
                self._set_max_size(entity, self._full[key] if is_over else 0)

    def _set_max_size(self, entity: Queue | Topic, max_size_mb: int) -> None:
        """Set the maximum size in the broker's own description only. Administration would reject a size of 0."""
        description = copy.copy(entity.description)
        object.__setattr__(description, "max_size_mb", max_size_mb)
        object.__setattr__(entity, "description", description)

    def _set_refusal_reason(self, reason: str | None) -> None:
        """Set the reason in the broker at once, because the server itself checks these disks only once an hour."""
        self._refusal_reason = reason
        broker = self._broker()
        for store in broker.stores if broker is not None else ():
            store.disk_full_reason = reason
