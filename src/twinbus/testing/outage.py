"""The switch for outages: what can happen to a namespace, and that it is over.

    namespace.outage.hang()
    ...
    namespace.outage.restore()

Owns: the words, and which fault is made where. Several may be on at once; of those of the network the last one counts.
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
"""What those who are told to wait are told; it is over when the test says so."""
MIN_FREE_BYTES: Final = 2**30
"""The default of --min-free."""


class Outage:
    """What is wrong with one namespace."""

    def __init__(
        self,
        loop: FakeTimeLoop,
        host: str,
        disks: LoopDisks,
        broker: Callable[[], Namespace | None],
        set_revoked: Callable[[bool], None],
    ) -> None:
        """Nothing yet. `broker` is the one that runs now; `set_revoked` takes the clients' key, or gives it back."""
        self._loop = loop
        self._network = loop.network
        self._host = host
        self._disks = disks
        self._broker = broker
        self._set_revoked = set_revoked
        self._refusal_reason: str | None = None
        """Why the disks take no messages."""
        self._busy: dict[str, None] = {}
        self._full: dict[str, int] = {}
        """How large each queue or topic is that is full now, in MB."""

    # --- the network --------------------------------------------------------------------------------------------------

    def stop(self, *, peer: str | None = None) -> None:
        """Cut all connections and refuse new ones, as if nobody served there. The namespace itself goes on."""
        self._network.refuse(self._host, peer=peer)

    def hang(self, *, peer: str | None = None, direction: Direction = Direction.BOTH) -> None:
        """Let nothing through, and nobody know: a partition. `Direction.FROM` holds only what the namespace answers."""
        self._network.hang(self._host, peer=peer, direction=direction)

    def slow(self, delay_s: float, *, peer: str | None = None) -> None:
        """Let everything take `delay_s` longer, in either direction."""
        self._network.slow(self._host, delay_s, peer=peer)

    def cut(self, *, peer: str | None = None) -> None:
        """Cut the connections that are there now, once, with all that is on its way."""
        self._network.cut(self._host, peer=peer)

    def cut_after(self, size: int, *, peer: str | None = None, direction: Direction = Direction.TO) -> None:
        """Cut each connection once `size` more bytes have arrived; with `Direction.FROM`: at the client."""
        self._network.cut_after(self._host, size, peer=peer, direction=direction)

    # --- the process --------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Let the namespace's process stand still, as by SIGSTOP: its timers, too."""
        self._loop.freeze(self._host)

    # --- the namespace ------------------------------------------------------------------------------------------------

    def busy(self, *paths: str) -> None:
        """Answer whoever sends to these queues or topics that the server is busy. EntityNotFound."""
        broker = self._broker()
        if broker is not None:
            for path in paths:
                broker.find_sendable(path)
        self._busy.update(dict.fromkeys(map(canonical_key, paths)))
        self.apply()

    def full(self, *paths: str) -> None:
        """Answer whoever sends to these queues or topics that they hold as much as they can: QuotaExceeded."""
        broker = self._broker()
        if broker is None:
            raise RuntimeError("a namespace that is not running has no queue that could be full: start it first")
        for path in paths:
            self._full.setdefault(canonical_key(path), broker.find_sendable(path).description.max_size_mb)
        self.apply()

    def revoke_key(self) -> None:
        """Replace the key that clients use by another one, as a rotation does that forgot them: Unauthorized."""
        self._set_revoked(True)  # noqa: FBT003  # the only argument

    # --- the disks ----------------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Leave no room: sends are refused, and settlements are not."""
        self._disks.fill()
        self._set_refusal_reason(low_space_reason(MIN_FREE_BYTES))

    def fail_store(self, number: int = 0) -> None:
        """Let a store fail at its next commit, and not be opened again before `restore`."""
        self._disks.fail(number)

    def hang_store(self, number: int = 0) -> None:
        """Let a store not answer: after `store_timeout_s` it counts as unavailable."""
        self._disks.hang(number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """All is well. A store that has failed is opened again within half a minute."""
        self._loop.thaw(self._host)
        self._network.restore(self._host)
        self.give_key_back()
        self.restore_disks()
        self.no_longer(*self._busy, *self._full)

    def give_key_back(self) -> None:
        """Take the key of clients again."""
        self._set_revoked(False)  # noqa: FBT003

    def restore_disks(self) -> None:
        """Let all disks work well again."""
        self._disks.restore()
        self._set_refusal_reason(None)

    def no_longer(self, *paths: str) -> None:
        """End that queues or topics are busy or full."""
        self._apply_to_entities(paths, is_over=True)
        for path in paths:
            self._busy.pop(canonical_key(path), None)
            self._full.pop(canonical_key(path), None)

    def apply(self) -> None:
        """Make the faults that are on in a broker that was just started.

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
            if entity is None:  # it may have been deleted meanwhile
                continue
            if key in self._busy:
                outage = RehearsedOutage(entity.path, OutageKind.BUSY, since_ms=now_ms, until_ms=now_ms + FAR_FUTURE_MS)
                entity.set_outage(None if is_over else outage)
            if key in self._full and isinstance(entity, Queue | Topic):
                self._set_max_size(entity, self._full[key] if is_over else 0)

    def _set_max_size(self, entity: Queue | Topic, max_size_mb: int) -> None:
        """Only the broker's own description: no administrator can ask for a size of nothing."""
        description = copy.copy(entity.description)
        object.__setattr__(description, "max_size_mb", max_size_mb)
        object.__setattr__(entity, "description", description)

    def _set_refusal_reason(self, reason: str | None) -> None:
        """At once: the server itself looks at these disks only now and then."""
        self._refusal_reason = reason
        broker = self._broker()
        for journal in broker.stores if broker is not None else ():
            journal.disk_full_reason = reason
