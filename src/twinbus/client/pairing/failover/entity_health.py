"""The failover state of one entity, as a table.

Owns: what state an entity is in, why and since when, and the timer of its failover interval. Knows nothing of senders,
pings or backlog queues: they tell it what happened, and are told what changed. `docs/pairing.md` draws the table.
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
    """What the senders of an entity hold of it."""

    HEALTHY = "healthy"
    """Sends go to the primary."""
    SUSPECT = "suspect"
    """A send has failed; they still go to the primary, and what it does not take fails."""
    FAILED_OVER = "failed over"
    """Sends are parked, and the primary is pinged."""
    UNREACHABLE = "unreachable"
    """The primary is there, and refuses pings: sends fail with that reason, and nothing is parked."""


class HealthEvent(Enum):
    """What can happen to an entity."""

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
"""Anything else changes nothing: a late success or failure of a send that began before, say."""


class EntityHealth:
    """One entity of the primary, to all senders of a factory."""

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
        """It is held to be healthy. `changed` is told the state it had before; `wakeups`, that the entity answers."""
        self.path = path
        self.state = EntityState.HEALTHY
        self.failure: ServiceBusError | None = None
        """The failure that made it what it is; None while it is healthy."""
        self.since_ms = clock.wall_ms()
        """When it became what it is."""
        self.ping_refusal: ServiceBusError
        """Why pings are refused, once they are."""
        self.ping_key = RoutingKey()
        """Of the send that failed first: pings carry it."""
        self.fragment = None
        """Pings are for all of it."""
        self.fragment_outages = fragment_outages
        """Those of it that are down by themselves."""
        self.next_ping_ms: int | None = None
        self.state_changed = asyncio.Event()
        """Set, and replaced by another, with each change of state."""
        self._interval_s = interval_s
        self._clock = clock
        self._on_change = on_change
        self._wakeups = wakeups
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_healthy(self) -> bool:
        """Sends go to the primary, as if there were no pair."""
        return self.state is EntityState.HEALTHY

    @property
    def takes_sends(self) -> bool:
        """Sends go to the primary: they are not disabled (R036)."""
        return self.state is EntityState.HEALTHY or self.state is EntityState.SUSPECT

    @property
    def is_pinged(self) -> bool:
        """Somebody asks from time to time whether it is there again."""
        return not self.takes_sends

    @property
    def is_fully_healthy(self) -> bool:
        """It is healthy, and so are all its fragments, as far as that is known."""
        return self.is_healthy and not self.fragment_outages.down

    def send_failed(self, error: ServiceBusError, ping_key: RoutingKey) -> None:
        """A send failed in a way that triggers failover. The interval runs from the first such failure (Q01)."""
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
        """The primary took a message: that is what usually happens, and changes nothing."""
        if self._wakeups.has_waiters:
            self._wakeups.notify(self.path)
        if self.state is EntityState.SUSPECT:
            self._apply(HealthEvent.SEND_SUCCEEDED)

    def ping_succeeded(self) -> None:
        """The primary took a ping."""
        self._wakeups.notify(self.path)
        self._apply(HealthEvent.PING_SUCCEEDED)

    def pings_refused(self, error: ServiceBusError) -> None:
        """The primary answers pings, and refuses them."""
        self.failure = self.ping_refusal = error
        self._apply(HealthEvent.PINGS_REFUSED)

    def mark_healthy(self) -> None:
        """Somebody knows better."""
        self._wakeups.notify(self.path)
        self._apply(HealthEvent.MARKED_HEALTHY)
        self.fragment_outages.restore_all()

    def close(self) -> None:
        """Nothing more is waited for, and no failure counts: sends that a close ends say nothing of the entity."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, event: HealthEvent) -> None:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return
        before, self.state, self.since_ms = self.state, following, self._clock.wall_ms()
        if self._timer is not None and following is not EntityState.SUSPECT:
            self._timer.cancel()
            self._timer = None
        if following is EntityState.HEALTHY:
            self.failure = self.next_ping_ms = None
        moved, self.state_changed = self.state_changed, asyncio.Event()
        moved.set()
        self._on_change(self, before)
