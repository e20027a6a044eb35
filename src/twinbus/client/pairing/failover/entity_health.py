"""The failover state of one entity, as a table.

Owns: the state of an entity, its reason and start time, and the timer of the failover interval. Knows nothing of
senders, pings or backlog queues, which report events to this module and are notified of state changes.
`docs/pairing.md` draws the table.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.failover.fragment_outages import RoutingKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.clock import Clock
    from twinbus.client.pairing.failover.fragment_outages import FragmentOutages
    from twinbus.client.pairing.syphon.wakeups import Wakeups
    from twinbus.model.errors import ServiceBusError


class EntityState(Enum):
    """The state of an entity, as its senders see it."""

    HEALTHY = "healthy"
    """Sends go to the primary."""
    SUSPECT = "suspect"
    """A send has failed. Sends still go to the primary, and a send that the primary does not accept fails."""
    FAILED_OVER = "failed over"
    """Sends are parked, and the primary is pinged."""
    UNREACHABLE = "unreachable"
    """The primary responds, but refuses pings. Sends fail with the pings' error, and nothing is parked."""


class HealthEvent(Enum):
    """Events that can change the state of an entity."""

    SEND_FAILED = "a send failed"
    SEND_SUCCEEDED = "a send succeeded"
    INTERVAL_PASSED = "the failover interval passed"
    PING_SUCCEEDED = "a ping succeeded"
    PINGS_REFUSED = "two pings in a row were refused"
    MARKED_HEALTHY = "it was marked healthy"


TRANSITIONS: Final = {
    (EntityState.HEALTHY, HealthEvent.SEND_FAILED): EntityState.SUSPECT,
    (EntityState.SUSPECT, HealthEvent.SEND_SUCCEEDED): EntityState.HEALTHY,
    (EntityState.SUSPECT, HealthEvent.INTERVAL_PASSED): EntityState.FAILED_OVER,
    (EntityState.SUSPECT, HealthEvent.MARKED_HEALTHY): EntityState.HEALTHY,
    (EntityState.FAILED_OVER, HealthEvent.PING_SUCCEEDED): EntityState.HEALTHY,
    (EntityState.FAILED_OVER, HealthEvent.PINGS_REFUSED): EntityState.UNREACHABLE,
    (EntityState.FAILED_OVER, HealthEvent.MARKED_HEALTHY): EntityState.HEALTHY,
    (EntityState.UNREACHABLE, HealthEvent.PING_SUCCEEDED): EntityState.HEALTHY,
    (EntityState.UNREACHABLE, HealthEvent.MARKED_HEALTHY): EntityState.HEALTHY,
}
"""The next state by state and event. All other combinations leave the state unchanged, for example the result of a send
that began before the last state change."""


class EntityHealth:
    """The health of one entity of the primary, shared by all senders of a factory."""

    def __init__(
        self,
        path: str,
        *,
        interval_s: float,
        clock: Clock,
        fragment_outages: FragmentOutages,
        on_change: Callable[[EntityHealth, EntityState], None],
        wakeups: Wakeups,
    ) -> None:
        """Create the health of an entity that is healthy.

        `on_change` is called with the entity's previous state after each change; `wakeups` is notified when the entity
        responds.
        """
        self.path = path
        self.state = EntityState.HEALTHY
        self.failure: ServiceBusError | None = None
        """The error that caused the current state; None while the entity is healthy."""
        self.since_ms = clock.wall_ms()
        """The time of the last state change."""
        self.ping_refusal: ServiceBusError
        """The error with which the primary refuses pings; only set after pings were refused."""
        self.ping_key = RoutingKey()
        """The routing key of the first send that failed; pings carry this key."""
        self.fragment = None
        """Always None, because pings test the entity as a whole."""
        self.fragment_outages = fragment_outages
        """The outages of the entity's fragments."""
        self.next_ping_ms: int | None = None
        self.state_changed = asyncio.Event()
        """Set, and replaced by a new event, on each state change."""
        self._interval_s = interval_s
        self._clock = clock
        self._on_change = on_change
        self._wakeups = wakeups
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_healthy(self) -> bool:
        """Whether sends go to the primary as if there were no pairing."""
        return self.state is EntityState.HEALTHY

    @property
    def accepts_sends(self) -> bool:
        """Whether sends go to the primary: the entity is healthy or suspect."""
        return self.state is EntityState.HEALTHY or self.state is EntityState.SUSPECT

    @property
    def is_pinged(self) -> bool:
        """Whether the entity is pinged, because sends do not go to the primary."""
        return not self.accepts_sends

    @property
    def is_fully_healthy(self) -> bool:
        """Whether the entity is healthy and none of its fragments is known to be down."""
        return self.is_healthy and not self.fragment_outages.down

    def send_failed(self, error: ServiceBusError, ping_key: RoutingKey) -> None:
        """Note a failed send that triggers failover. The failover interval starts with the first such failure."""
        if self.state is not EntityState.HEALTHY or self._is_closed:
            return
        self.failure, self.ping_key = error, ping_key
        self._apply(HealthEvent.SEND_FAILED)
        if self._interval_s <= 0:
            self._apply(HealthEvent.INTERVAL_PASSED)
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._apply, HealthEvent.INTERVAL_PASSED)

    def send_succeeded(self) -> None:
        """Note that the primary accepted a message. In the healthy state this changes nothing."""
        if self._wakeups.has_waiters:
            self._wakeups.notify(self.path)
        if self.state is EntityState.SUSPECT:
            self._apply(HealthEvent.SEND_SUCCEEDED)

    def ping_succeeded(self) -> None:
        """Note that the primary accepted a ping."""
        self._wakeups.notify(self.path)
        self._apply(HealthEvent.PING_SUCCEEDED)

    def pings_refused(self, error: ServiceBusError) -> None:
        """Note that the primary responds to pings, but refuses them."""
        self.failure = self.ping_refusal = error
        self._apply(HealthEvent.PINGS_REFUSED)

    def mark_healthy(self) -> None:
        """Mark the entity and all its fragments healthy at the application's request."""
        self._wakeups.notify(self.path)
        self._apply(HealthEvent.MARKED_HEALTHY)
        self.fragment_outages.restore_all()

    def close(self) -> None:
        """Stop the timer and ignore further failures.

        A send that fails because the client is closing says nothing about the entity.
        """
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, event: HealthEvent) -> None:
        next_state = TRANSITIONS.get((self.state, event))
        if next_state is None:
            return
        previous, self.state, self.since_ms = self.state, next_state, self._clock.wall_ms()
        if self._timer is not None and next_state is not EntityState.SUSPECT:
            self._timer.cancel()
            self._timer = None
        if next_state is EntityState.HEALTHY:
            self.failure = self.next_ping_ms = None
        changed, self.state_changed = self.state_changed, asyncio.Event()
        changed.set()
        self._on_change(self, previous)
