"""Admission of connections to one process: limits, and which connection is dropped to make room for a new one.

    admission = Admission(max_connections=10_000, max_unauthenticated=1_000)
    slot = admission.admit("192.0.2.7")     # at accept, before any TLS handshake
    slot.drop = transport.abort
    slot.authenticated()                    # a valid key or token was presented
    slot.release()                          # the socket is closed

One limit applies to all listeners of the process, and a second limit to unauthenticated connections from each remote
address. Refusing new connections at a limit would let an attacker with silent sockets lock out all other clients, so an
older connection is dropped instead. A client with a key authenticates within milliseconds, so connections are dropped
in this order:

1. the connection that has been *quiet* longest: unauthenticated, and nothing received yet, or no request in progress;
2. the oldest *talking* connection: unauthenticated, in a handshake or a request, for at least `HANDSHAKE_GRACE_S`. The
   grace period keeps many reconnecting clients from dropping one another in the middle of their handshakes;
3. the connection that has been *idle* longest: authenticated, over HTTP, between two requests.

A *busy* connection, which is authenticated and in use, is never dropped. If all connections are busy,
`SPARE_CONNECTIONS` more connections are admitted, and dropped when they authenticate: a server at its limit is healthy,
and a health check, which has no key, must get through.

Owns: the count, the limits, the choice of connection to drop, and garbage collection after connections are closed.
Knows nothing of sockets and protocols.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.callbacks import do_nothing
from twinbus.server.runtime.interpreter import CONNECTIONS_PER_COLLECTION
from twinbus.server.runtime.logs import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Callable

log: Final = logging.getLogger(__name__)

HANDSHAKE_GRACE_S: Final = 2.0
"""How long a connection may take for its handshakes and first token before it can be dropped for another connection."""
SPARE_CONNECTIONS: Final = 8
"""Connections admitted above the limit while no connection can be dropped. They may not authenticate."""
MAX_CLOSING_CONNECTIONS: Final = 64
"""The limit on dropped connections whose sockets are still closing; closing takes a turn of the event loop."""
_IPV6_NETWORK_BITS: Final = 64


class SlotState(Enum):
    """The state of a connection, which decides when it may be dropped."""

    QUIET = "quiet"
    TALKING = "talking"
    IDLE = "idle"
    BUSY = "busy"
    DROPPED = "dropped"
    """The connection was dropped, and its socket is closing."""
    RELEASED = "released"


class Slot:
    """An admitted connection, as `Admission` counts it."""

    __slots__ = (
        "_admission",
        "check_readable",
        "drop",
        "is_authenticated",
        "network",
        "on_released",
        "since_s",
        "state",
    )

    def __init__(self, admission: Admission, network: str) -> None:
        """Create a slot; only `Admission.admit` calls this."""
        self._admission = admission
        self.network = network
        self.state = SlotState.QUIET
        self.since_s = 0.0
        """The time of the last state change."""
        self.is_authenticated = False
        self.drop: Callable[[], None] = do_nothing
        """Closes the connection at once; `release` is called afterwards."""
        self.check_readable: Callable[[], bool] | None = None
        """Returns whether unread first bytes have arrived, and calls `busy` if so; None once they have arrived."""
        self.on_released: Callable[[], None] = do_nothing

    def authenticated(self) -> None:
        """Record that the client has presented a valid key or token."""
        if not self.is_authenticated:
            self._admission.on_authenticated(self)

    def busy(self) -> None:
        """Record that bytes of a handshake or of a request have arrived."""
        state = SlotState.BUSY if self.is_authenticated else SlotState.TALKING
        if self.state is not state:
            self._admission.change_state(self, state, is_authenticated=self.is_authenticated)

    def idle(self) -> None:
        """Record that a response was sent and the next request has not arrived."""
        state = SlotState.IDLE if self.is_authenticated else SlotState.QUIET
        self._admission.change_state(self, state, is_authenticated=self.is_authenticated)

    def release(self) -> None:
        """Record that the socket is closed."""
        self._admission.release(self)


class _SlotGroup:
    """Connections by state, each state in the order in which connections entered it."""

    def __init__(self) -> None:
        self._by_state: dict[SlotState, dict[Slot, None]] = {state: {} for state in SlotState}

    def __len__(self) -> int:
        return sum(map(len, self._by_state.values()))

    @property
    def authenticated_count(self) -> int:
        """The number of authenticated connections."""
        return len(self._by_state[SlotState.IDLE]) + len(self._by_state[SlotState.BUSY])

    def add(self, slot: Slot) -> None:
        self._by_state[slot.state][slot] = None

    def discard(self, slot: Slot) -> None:
        self._by_state[slot.state].pop(slot, None)

    def choose_victim(self, now_s: float) -> Slot | None:
        """Return the connection to drop for a new one, or None if no connection may be dropped."""
        quiet = self._by_state[SlotState.QUIET]
        while quiet:
            slot = next(iter(quiet))
            if slot.check_readable is None or not slot.check_readable():
                return slot
        for slot in self._by_state[SlotState.TALKING]:
            if now_s - slot.since_s >= HANDSHAKE_GRACE_S:
                return slot
            break
        return next(iter(self._by_state[SlotState.IDLE]), None)


class Admission:
    """All connections to one process."""

    def __init__(
        self,
        *,
        max_connections: int = 10_000,
        max_unauthenticated: int = 1_000,
        clock: Callable[[], float] = time.monotonic,
        collect_garbage: Callable[[], object] = gc.collect,
    ) -> None:
        """Create an admission without connections.

        `max_unauthenticated` is the limit for each address, and at most half of `max_connections`, so that one address
        cannot use all connections. `collect_garbage` is called from time to time to free the memory of closed
        connections.
        """
        self.max_connections = max_connections
        self.max_unauthenticated = min(max_unauthenticated, max(1, max_connections // 2))
        self._clock = clock
        self._slots = _SlotGroup()
        self._unauthenticated: dict[str, _SlotGroup] = {}
        """The unauthenticated connections by network."""
        self._collect_garbage = collect_garbage
        self._count = 0
        self._closing_count = 0
        self._ended_count = 0
        self._dropped_log = ThrottledLog(log)
        self._refused_log = ThrottledLog(log)

    @property
    def count(self) -> int:
        """The number of open sockets, including sockets that are closing."""
        return self._count + self._closing_count

    def admit(self, host: str) -> Slot | None:
        """Admit a connection that was just accepted, or return None if it must be closed."""
        network = network_of(host)
        unauthenticated = self._unauthenticated.get(network)
        if unauthenticated is not None and len(unauthenticated) >= self.max_unauthenticated:
            limit = f"{self.max_unauthenticated} unauthenticated connections of {network}"
            if not self._drop_one(unauthenticated, limit):
                self._refuse(limit)
                return None
        if self._count >= self.max_connections:
            limit = f"{self.max_connections} connections of this process"
            if not self._drop_one(self._slots, limit) and self._count >= self.max_connections + SPARE_CONNECTIONS:
                self._refuse(limit)
                return None
        slot = Slot(self, network)
        slot.since_s = self._clock()
        self._count += 1
        self._add(slot)
        return slot

    def _drop_one(self, group: _SlotGroup, limit: str) -> bool:
        """Drop a connection in a group. Return False if none can be dropped now."""
        slot = group.choose_victim(self._clock()) if self._closing_count < MAX_CLOSING_CONNECTIONS else None
        if slot is None:
            return False
        self._dropped_log.warning(
            "limit of %s reached: dropped a connection of %s (%s for %.1f s)",
            limit,
            slot.network,
            slot.state.value,
            self._clock() - slot.since_s,
        )
        self._drop(slot)
        return True

    def _drop(self, slot: Slot) -> None:
        self._remove(slot)
        slot.state = SlotState.DROPPED
        self._count -= 1
        self._closing_count += 1
        slot.drop()

    def _refuse(self, limit: str) -> None:
        self._refused_log.warning("limit of %s reached: a new connection was refused", limit)

    # --- called by slots ----------------------------------------------------------------------------------------------

    def on_authenticated(self, slot: Slot) -> None:
        """Mark a connection as authenticated; drop it if all connections up to the limit are authenticated."""
        if slot.state in (SlotState.DROPPED, SlotState.RELEASED):
            return
        if self._slots.authenticated_count >= self.max_connections:
            self._refuse(f"{self.max_connections} connections of this process")
            self._drop(slot)
        else:
            self.change_state(slot, SlotState.BUSY, is_authenticated=True)

    def change_state(self, slot: Slot, state: SlotState, *, is_authenticated: bool) -> None:
        """Change the state of a connection that is neither dropped nor released."""
        if slot.state in (SlotState.DROPPED, SlotState.RELEASED):
            return
        self._remove(slot)
        slot.state, slot.since_s, slot.is_authenticated = state, self._clock(), is_authenticated
        self._add(slot)

    def release(self, slot: Slot) -> None:
        """Remove a connection whose socket is closed, and collect garbage from time to time."""
        if slot.state is SlotState.RELEASED:
            return
        if slot.state is SlotState.DROPPED:
            self._closing_count -= 1
        else:
            self._remove(slot)
            self._count -= 1
        slot.state, slot.drop, slot.check_readable = SlotState.RELEASED, do_nothing, None
        slot.on_released()
        self._ended_count += 1
        if self._ended_count >= CONNECTIONS_PER_COLLECTION:
            self._ended_count = 0
            self._collect_garbage()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _add(self, slot: Slot) -> None:
        self._slots.add(slot)
        if not slot.is_authenticated:
            self._unauthenticated.setdefault(slot.network, _SlotGroup()).add(slot)

    def _remove(self, slot: Slot) -> None:
        self._slots.discard(slot)
        if not slot.is_authenticated:
            unauthenticated = self._unauthenticated[slot.network]
            unauthenticated.discard(slot)
            if not unauthenticated:
                del self._unauthenticated[slot.network]


def network_of(host: str) -> str:
    """Return the network that counts as one address: an IPv4 address, or an IPv6 /64, which one machine can own."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))
