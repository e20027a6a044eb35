"""Links of the simulation that look and take nothing: those of the server, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.remote.links import browse
from tests.ledger.problems import Violation
from tests.simulation.letter import read_delivery
from tests.simulation.processes.takers import DRAIN_S
from twinbus.broker.remote.browsing import RemoteBrowser
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.processes.process import Process
    from twinbus.broker.ports.consumer import Delivery


class Reader:
    """Sees all messages of all fragments once, in the order of each."""

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.number = number
        self.drain_until_s: float | None = None
        self.seen: dict[int, int] = {}
        """Of each fragment, the highest sequence number."""
        self._world = process.world
        fragments = process.fragments(SubQueue.MAIN)
        self.link, self.use = browse(self._see, fragments, process.turn.append)
        process.readers.append(self)

    def __repr__(self) -> str:
        return f"reader {self.number} at {self.process!r}, room {self.use.room} of {self.link.credit}"

    def _see(self, delivery: Delivery) -> None:
        sequence = read_delivery(delivery[0]).sequence
        if sequence <= self.seen.get(sequence >> 48, 0):
            raise Violation(f"{self!r} is shown {sequence >> 48}:{sequence & 0xFFFF} once more, or out of turn")
        self.seen[sequence >> 48] = sequence

    def check(self) -> None:
        """What it is told, and when."""
        if self.link.errors and not self._world.ledger.is_plain:
            raise Violation(f"{self!r} is told that the entity is gone: {self.link.errors}")
        if self.link.errors:
            self.leave()  # its only fragment was not there
        elif not self.link.drain_requested:
            self.drain_until_s = None
        elif self._is_late():
            raise Violation(f"a drain is not answered in time: {self!r}")

    def _is_late(self) -> bool:
        """A drain asks others for no longer than that. Where there are none, it waits for its own disks."""
        is_shared = any(isinstance(browser, RemoteBrowser) for _, browser in self.use._browsers)  # noqa: SLF001
        is_over = self.drain_until_s is not None and self.drain_until_s <= self._world.clock.monotonic_s()
        return is_over and is_shared

    def grant(self, credit: int) -> None:
        self.link.credit += credit
        self.use.receive_credit()

    def drain(self) -> None:
        self.link.drain_requested = True
        self.drain_until_s = self._world.clock.monotonic_s() + DRAIN_S
        self.use.receive_credit()

    def leave(self) -> None:
        self.link.is_attached = False
        self.use.detached()
        self.process.readers.remove(self)
