"""Browsing links of the simulation: the server's own links, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.remote.fake_links import attach_browser
from tests.simulation.broker.payloads import read_delivery
from tests.simulation.cluster.receivers import DRAIN_TIMEOUT_S
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.remote.message_browser import RemoteBrowseCursor
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from twinbus.broker.ports.consumer import Delivery


class SimulatedBrowser:
    """A browser that must see all messages of all fragments once, in the order of each fragment."""

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.number = number
        self.drain_until_s: float | None = None
        self.seen: dict[int, int] = {}
        """Highest sequence number seen, by fragment."""
        self._simulation = process.simulation
        fragments = process.fragments(SubQueue.MAIN)
        self.link, self.browse_link = attach_browser(self._on_message, fragments, process.deferred_calls.append)
        process.browsers.append(self)

    def __repr__(self) -> str:
        return (
            f"reader {self.number} at {self.process!r}, room {self.browse_link.available_credit} of {self.link.credit}"
        )

    def _on_message(self, delivery: Delivery) -> None:
        sequence = read_delivery(delivery[0]).sequence
        if sequence <= self.seen.get(sequence >> 48, 0):
            raise Violation(f"{self!r} is shown {sequence >> 48}:{sequence & 0xFFFF} once more, or out of turn")
        self.seen[sequence >> 48] = sequence

    def check(self) -> None:
        """Check that the link has no error, and that its drain completes in time."""
        if self.link.errors and not self._simulation.checker.is_plain:
            raise Violation(f"{self!r} was detached: {self.link.errors}")
        if self.link.errors:
            self.leave()  # its only fragment was unavailable
        elif not self.link.drain_requested:
            self.drain_until_s = None
        elif self._is_late():
            raise Violation(f"a drain is not answered in time: {self!r}")

    def _is_late(self) -> bool:
        """Whether a drain took too long. Without remote fragments, a drain waits for the disks without limit."""
        has_remote_fragments = any(isinstance(browser, RemoteBrowseCursor) for _, browser in self.browse_link._browsers)  # noqa: SLF001
        is_over = self.drain_until_s is not None and self.drain_until_s <= self._simulation.clock.monotonic_s()
        return is_over and has_remote_fragments

    def grant(self, credit: int) -> None:
        self.link.credit += credit
        self.browse_link.on_credit()

    def drain(self) -> None:
        self.link.drain_requested = True
        self.drain_until_s = self._simulation.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self.browse_link.on_credit()

    def leave(self) -> None:
        self.link.is_attached = False
        self.browse_link.on_detached()
        self.process.browsers.remove(self)
