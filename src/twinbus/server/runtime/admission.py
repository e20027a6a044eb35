"""The connections of one process: how many there may be, and which one is dropped to make room for the next.

    admission = Admission(max_connections=10_000, max_unauthenticated=1_000)
    slot = admission.admit("192.0.2.7")     # at accept, before any TLS handshake
    slot.drop = transport.abort
    slot.authenticated()                    # a valid key or token was shown
    slot.release()                          # the socket is closed

One cap holds for all listeners of the process, and a second one for the unauthenticated connections of each remote
address. At a cap, refusing the newest connection would let whoever holds silent sockets lock everybody else out, so an
older connection is dropped instead. A client with a key authenticates within milliseconds; hence the order:

1. the connection that has been *quiet* longest: unauthenticated, and nothing received yet, or no request in progress;
2. the oldest *talking* one: unauthenticated, in a handshake or a request, if it has had `GRACE_S` for that. The grace
   keeps a crowd of reconnecting clients from cutting off one another in the middle of their handshakes;
3. the one that has been *idle* longest: authenticated, over HTTP, between two requests.

A *busy* connection, which is authenticated and in use, is never dropped. If there are only those, `SPARE` more
connections are admitted, and dropped when they authenticate: a server with as many clients as it may have is healthy,
and a health check has to find it so.

Owns: the count, the caps, the choice, and that ended connections leave no memory behind. Knows nothing of sockets and
protocols.
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
"""How long a connection may take for its handshakes and its first token before it can be dropped for another one."""
SPARE_CONNECTIONS: Final = 8
"""Connections above the cap, while nobody can be dropped. They may not authenticate."""
MAX_CLOSING_CONNECTIONS: Final = 64
"""Dropped connections whose sockets are not closed yet, above the cap: closing takes a turn of the event loop."""
_IPV6_NETWORK_BITS: Final = 64


class SlotState(Enum):
    """What a connection is doing, as far as it matters for dropping it."""

    QUIET = "quiet"
    TALKING = "talking"
    IDLE = "idle"
    BUSY = "busy"
    DROPPED = "dropped"
    """Its socket is being closed."""
    RELEASED = "released"


class Slot:
    """The place of one connection."""

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
        """Made by `Admission.admit`."""
        self._admission = admission
        self.network = network
        self.state = SlotState.QUIET
        self.since_s = 0.0
        """When the standing last changed."""
        self.is_authenticated = False
        self.drop: Callable[[], None] = do_nothing
        """End the connection at once; `release` follows."""
        self.check_readable: Callable[[], bool] | None = None
        """Whether the first bytes have arrived unread; if so, this has called `busy`. None once they have been seen."""
        self.on_released: Callable[[], None] = do_nothing

    def authenticated(self) -> None:
        """The client has shown a valid key or token."""
        if not self.is_authenticated:
            self._admission.on_authenticated(self)

    def busy(self) -> None:
        """Bytes of a handshake or of a request have arrived."""
        standing = SlotState.BUSY if self.is_authenticated else SlotState.TALKING
        if self.state is not standing:
            self._admission.change_state(self, standing, is_authenticated=self.is_authenticated)

    def idle(self) -> None:
        """A request was answered, and the next has not arrived."""
        standing = SlotState.IDLE if self.is_authenticated else SlotState.QUIET
        self._admission.change_state(self, standing, is_authenticated=self.is_authenticated)

    def release(self) -> None:
        """The socket is closed."""
        self._admission.release(self)


class _SlotGroup:
    """Connections in the order in which their standing last changed."""

    def __init__(self) -> None:
        self._by_state: dict[SlotState, dict[Slot, None]] = {standing: {} for standing in SlotState}

    def __len__(self) -> int:
        return sum(map(len, self._by_state.values()))

    @property
    def authenticated_count(self) -> int:
        """How many of them are."""
        return len(self._by_state[SlotState.IDLE]) + len(self._by_state[SlotState.BUSY])

    def add(self, slot: Slot) -> None:
        self._by_state[slot.state][slot] = None

    def discard(self, slot: Slot) -> None:
        self._by_state[slot.state].pop(slot, None)

    def choose_victim(self, now_s: float) -> Slot | None:
        """The connection to drop for a new one."""
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
    """All connections of one process."""

    def __init__(
        self,
        *,
        max_connections: int = 10_000,
        max_unauthenticated: int = 1_000,
        clock: Callable[[], float] = time.monotonic,
        collect_garbage: Callable[[], object] = gc.collect,
    ) -> None:
        """`max_unauthenticated` is per address, and at most half of `max_connections`: the rest is for others.

        `collect` frees what ended connections have left behind, from time to time.
        """
        self.max_connections = max_connections
        self.max_unauthenticated = min(max_unauthenticated, max(1, max_connections // 2))
        self._clock = clock
        self._slots = _SlotGroup()
        self._unauthenticated: dict[str, _SlotGroup] = {}
        """The unauthenticated connections, by their networks."""
        self._collect_garbage = collect_garbage
        self._count = 0
        self._closing_count = 0
        self._ended_count = 0
        self._dropped_log = ThrottledLog(log)
        self._refused_log = ThrottledLog(log)

    @property
    def count(self) -> int:
        """How many sockets there are, with those being closed."""
        return self._count + self._closing_count

    def admit(self, host: str) -> Slot | None:
        """Count a connection that was just accepted; None if it has to be closed."""
        network = network_of(host)
        strangers = self._unauthenticated.get(network)
        if strangers is not None and len(strangers) >= self.max_unauthenticated:
            limit = f"{self.max_unauthenticated} unauthenticated connections of {network}"
            if not self._drop_one(strangers, limit):
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
        """Drop a connection of a group; False if none of them can be dropped now."""
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

    # --- slots call these ---------------------------------------------------------------------------------------------

    def on_authenticated(self, slot: Slot) -> None:
        """A client has shown a valid key or token; on a spare connection, it comes too late."""
        if slot.state in (SlotState.DROPPED, SlotState.RELEASED):
            return
        if self._slots.authenticated_count >= self.max_connections:
            self._refuse(f"{self.max_connections} connections of this process")
            self._drop(slot)
        else:
            self.change_state(slot, SlotState.BUSY, is_authenticated=True)

    def change_state(self, slot: Slot, state: SlotState, *, is_authenticated: bool) -> None:
        """Give a connection another standing."""
        if slot.state in (SlotState.DROPPED, SlotState.RELEASED):
            return
        self._remove(slot)
        slot.state, slot.since_s, slot.is_authenticated = state, self._clock(), is_authenticated
        self._add(slot)

    def release(self, slot: Slot) -> None:
        """Forget a connection."""
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
            strangers = self._unauthenticated[slot.network]
            strangers.discard(slot)
            if not strangers:
                del self._unauthenticated[slot.network]


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits, which one machine can have whole."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))
