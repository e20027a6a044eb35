"""The switch for outages: what can happen to a namespace, and that it is over.

    namespace.outage.hang()
    ...
    namespace.outage.restore()

Owns: the words, and which fault is made where. Several may be on at once; of those of the network the last one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.outage import Outage as RehearsedOutage
from twinbus.model.outage import OutageKind
from twinbus.model.path import key_of
from twinbus.server.disk import low_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace
    from twinbus.testing.disks import LoopDisks
    from twinbus.testing.network import Network

FAR_MS: Final = 3_600_000
"""What those who are told to wait are told; it is over when the test says so."""
MIN_FREE_BYTES: Final = 2**30
"""The default of --min-free."""


class Outage:
    """What is wrong with one namespace."""

    def __init__(self, network: Network, host: str, disks: LoopDisks, broker: Callable[[], Namespace | None]) -> None:
        """Nothing yet. `broker` is the one that runs now."""
        self._network = network
        self._host = host
        self._disks = disks
        self._broker = broker
        self._busy: set[str] = set()

    # --- the network --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Cut all connections and refuse new ones, as if nobody served there. The namespace itself goes on."""
        self._network.refuse(self._host)

    def hang(self) -> None:
        """Let nothing through, and nobody know: a partition, or a process that is stopped."""
        self._network.hang(self._host)

    def slow(self, delay_s: float) -> None:
        """Let everything take `delay_s` longer, in either direction."""
        self._network.slow(self._host, delay_s)

    def cut(self) -> None:
        """Cut the connections that are there now, once."""
        self._network.cut(self._host)

    # --- the namespace ------------------------------------------------------------------------------------------------

    def busy(self, *paths: str) -> None:
        """Answer whoever sends to these queues or topics that the server is busy. EntityNotFound."""
        broker = self._broker()
        if broker is not None:
            for path in paths:
                broker.find_sendable(path)
        self._busy.update(paths)
        self.apply()

    # --- the disks ----------------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Leave no room: sends are refused, and settlements are not."""
        self._disks.fill()
        self._set_refusal(low_space(MIN_FREE_BYTES))

    def fail_store(self, number: int = 0) -> None:
        """Let a store fail at its next commit, and not be opened again before `restore`."""
        self._disks.fail(number)

    def hang_store(self, number: int = 0) -> None:
        """Let a store not answer: after `store_timeout_s` it counts as unavailable."""
        self._disks.hang(number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """All is well. A store that has failed is opened again within half a minute."""
        self._network.restore(self._host)
        self._disks.restore()
        self._set_refusal(None)
        self._press(is_over=True)
        self._busy.clear()

    def apply(self) -> None:
        """The namespace was started: what its broker has to know, it is told again."""
        self._press(is_over=False)

    def _press(self, *, is_over: bool) -> None:
        broker = self._broker()
        if broker is None:
            return
        now_ms = broker.clock.wall_ms()
        for key in map(key_of, self._busy):
            entity = broker.entities.get(key)
            if entity is not None:  # it may have been deleted meanwhile
                outage = RehearsedOutage(entity.path, OutageKind.BUSY, since_ms=now_ms, until_ms=now_ms + FAR_MS)
                entity.set_outage(None if is_over else outage)

    def _set_refusal(self, reason: str | None) -> None:
        """At once: the server itself looks at these disks only now and then."""
        broker = self._broker()
        for journal in broker.journals if broker is not None else ():
            journal.refusal = reason
