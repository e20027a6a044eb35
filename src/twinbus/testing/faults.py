"""Faults of a network in memory: of a host, of one of its ports, or of the route between two hosts.

Owns: which faults are on, and what they add up to for one connection. Knows nothing of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from twinbus.testing.transport import SocketAddress


class Direction(Enum):
    """Which bytes a fault concerns, seen from the host that it is a fault of."""

    BOTH = "both"
    TO = "to the host"
    """What is sent to the host: for a server, the requests."""
    FROM = "from the host"
    """What the host sends: for a server, the answers."""


class FaultKind(Enum):
    """What is wrong."""

    SLOW = "slow"
    REFUSED = "refused"
    """Nobody listens there; connections were cut."""
    HANGING = "hanging"
    """Bytes are held, and nobody is notified."""
    CUT_AFTER = "cut after some bytes"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: FaultKind
    direction: Direction = Direction.BOTH
    delay_s: float = 0.0
    """Of a slow route."""
    byte_count: int = 0
    """Bytes that still arrive before a connection is cut."""


class FaultKey(NamedTuple):
    """What a fault is of."""

    address: str
    port: int | None
    peer: str | None
    """The address of the only host that is concerned; None: all are."""


@dataclass(frozen=True, slots=True)
class Route:
    """What all faults together mean for one connection: `requests` go to the server, `answers` come from it."""

    is_refused: bool = False
    holds_requests: bool = False
    holds_responses: bool = False
    delay_s: float = 0.0
    cuts_requests: Fault | None = None
    cuts_responses: Fault | None = None

    @property
    def is_held(self) -> bool:
        """No new connection can be made: that takes bytes in both directions."""
        return self.holds_requests or self.holds_responses


NO_FAULTS: Final = Route()


class Faults:
    """All faults of a network."""

    def __init__(self) -> None:
        """Nothing is wrong."""
        self.version = 0
        """Another number after every change."""
        self._faults: dict[FaultKey, Fault] = {}

    def set(self, key: FaultKey, fault: Fault) -> None:
        """Add a fault; it replaces the one that had the same key."""
        self._faults[key] = fault
        self.version += 1

    def clear(self, key: FaultKey) -> None:
        """Remove the faults of a host; without a port or a peer also those of single ports or routes."""
        for one in list(self._faults):
            if key.peer is None:
                is_meant = key.address in (one.address, one.peer)
            else:
                is_meant = {one.address, one.peer} == {key.address, key.peer}
            if is_meant and key.port in (None, one.port):
                del self._faults[one]
        self.version += 1

    def route(self, client: str, server: SocketAddress) -> Route:
        """What the faults mean for a connection of a client with a server."""
        if not self._faults:
            return NO_FAULTS
        address, port = server
        found: list[tuple[Fault, bool]] = []  # with: it is a fault of the server
        for peer in (None, client):
            # What is said of a port is meant instead of what is said of its host.
            fault = self._faults.get(FaultKey(address, port, peer)) or self._faults.get(FaultKey(address, None, peer))
            if fault is not None:
                found.append((fault, True))
        for peer in (None, address):
            fault = self._faults.get(FaultKey(client, None, peer))
            if fault is not None:
                found.append((fault, False))
        return _combine(found) if found else NO_FAULTS


def _combine(faults: list[tuple[Fault, bool]]) -> Route:
    is_refused, delay_s = False, 0.0
    held: set[bool] = set()
    cuts: dict[bool, Fault] = {}
    for fault, is_of_server in faults:
        requests_are = Direction.TO if is_of_server else Direction.FROM
        concerned = [
            is_request
            for is_request in (True, False)
            if fault.direction is Direction.BOTH or (fault.direction is requests_are) is is_request
        ]
        is_refused |= fault.kind is FaultKind.REFUSED
        delay_s = max(delay_s, fault.delay_s)
        if fault.kind is FaultKind.HANGING:
            held.update(concerned)
        elif fault.kind is FaultKind.CUT_AFTER:
            cuts.update(dict.fromkeys(concerned, fault))
    return Route(
        is_refused=is_refused,
        holds_requests=True in held,
        holds_responses=False in held,
        delay_s=delay_s,
        cuts_requests=cuts.get(True),
        cuts_responses=cuts.get(False),
    )
