"""Faults in a network in memory: faults of a host, of one of its ports, or of the route between two hosts.

Owns the active faults and their combined effect on one connection. Knows nothing of connections or bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from twinbus.testing.transport import SocketAddress


class Direction(Enum):
    """Direction of the bytes that a fault affects, relative to the faulty host."""

    BOTH = "both"
    TO = "to the host"
    """Bytes sent to the host: for a server, the requests."""
    FROM = "from the host"
    """Bytes sent by the host: for a server, the responses."""


class FaultKind(Enum):
    """Kind of fault."""

    SLOW = "slow"
    REFUSED = "refused"
    """New connections are refused."""
    HANGING = "hanging"
    """Bytes are held back without an error at either end."""
    CUT_AFTER = "cut after some bytes"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its parameters."""

    kind: FaultKind
    direction: Direction = Direction.BOTH
    delay_s: float = 0.0
    """Additional delay, for SLOW."""
    byte_count: int = 0
    """Bytes that still arrive before a connection is cut, for CUT_AFTER."""


class FaultKey(NamedTuple):
    """The host, port and peer that a fault applies to."""

    address: str
    port: int | None
    peer: str | None
    """Address of the only affected peer, or None for all peers."""


@dataclass(frozen=True, slots=True)
class Route:
    """Combined effect of all faults on one connection: requests go to the server, responses come from it."""

    is_refused: bool = False
    holds_requests: bool = False
    holds_responses: bool = False
    delay_s: float = 0.0
    cuts_requests: Fault | None = None
    cuts_responses: Fault | None = None

    @property
    def is_held(self) -> bool:
        """Whether new connections hang, because a handshake needs bytes in both directions."""
        return self.holds_requests or self.holds_responses


NO_FAULTS: Final = Route()


class Faults:
    """Active faults of a network."""

    def __init__(self) -> None:
        """Start without faults."""
        self.version = 0
        """Number that increases with every change."""
        self._faults: dict[FaultKey, Fault] = {}

    def set(self, key: FaultKey, fault: Fault) -> None:
        """Add a fault, replacing any fault with the same key."""
        self._faults[key] = fault
        self.version += 1

    def clear(self, key: FaultKey) -> None:
        """Remove the faults of a host; without a port or peer, also the faults of its ports or routes."""
        for other in list(self._faults):
            if key.peer is None:
                is_affected = key.address in (other.address, other.peer)
            else:
                is_affected = {other.address, other.peer} == {key.address, key.peer}
            if is_affected and key.port in (None, other.port):
                del self._faults[other]
        self.version += 1

    def route(self, client: str, server: SocketAddress) -> Route:
        """Return the combined effect of all faults on a connection from a client to a server."""
        if not self._faults:
            return NO_FAULTS
        address, port = server
        faults: list[tuple[Fault, bool]] = []  # faults; True for a fault of the server, False for the client
        for peer in (None, client):
            # A fault of a port replaces the fault of its host.
            fault = self._faults.get(FaultKey(address, port, peer)) or self._faults.get(FaultKey(address, None, peer))
            if fault is not None:
                faults.append((fault, True))
        for peer in (None, address):
            fault = self._faults.get(FaultKey(client, None, peer))
            if fault is not None:
                faults.append((fault, False))
        return _combine(faults) if faults else NO_FAULTS


def _combine(faults: list[tuple[Fault, bool]]) -> Route:
    is_refused, delay_s = False, 0.0
    held: set[bool] = set()
    cuts: dict[bool, Fault] = {}
    for fault, is_servers in faults:
        request_direction = Direction.TO if is_servers else Direction.FROM
        affected = [
            is_request
            for is_request in (True, False)
            if fault.direction is Direction.BOTH or (fault.direction is request_direction) is is_request
        ]
        is_refused |= fault.kind is FaultKind.REFUSED
        delay_s = max(delay_s, fault.delay_s)
        if fault.kind is FaultKind.HANGING:
            held.update(affected)
        elif fault.kind is FaultKind.CUT_AFTER:
            cuts.update(dict.fromkeys(affected, fault))
    return Route(
        is_refused=is_refused,
        holds_requests=True in held,
        holds_responses=False in held,
        delay_s=delay_s,
        cuts_requests=cuts.get(True),
        cuts_responses=cuts.get(False),
    )
