"""Rehearsed outages: an entity, or the whole namespace, refuses requests for a while, as if its store were down.

Owns the active outages and the replies that silent outages hold back. During an outage, an entity refuses sends and
delivers no messages; locked messages can still be settled, so no message is lost. No refused message is stored later:
requests that a silent outage left unanswered are refused when the outage ends. Outages do not survive a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinbus.model import path as paths
from twinbus.model.errors import ArgumentOutOfRange, EntityNotFound, ServerBusy, StoreUnavailable
from twinbus.model.outage import ALL_ENTITIES, MAX_OUTAGE_S, MIN_OUTAGE_S, OutageKind
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.clock import Clock, Timers
    from twinbus.model.errors import ServiceBusError


class SilentOutage(StoreUnavailable):
    """Error during a silent outage: the gateway sends the error to the client only when the outage has ended."""

    def __init__(self, text: str, outage: Outage) -> None:
        """Create an error for `outage`; `text` is sent when the outage has ended."""
        super().__init__(text)
        self.outage = outage


class Outage:
    """A rehearsed outage of one entity or of the whole namespace."""

    def __init__(self, path: str, kind: OutageKind, *, since_ms: int, until_ms: int) -> None:
        """Create an outage; `path` is the path of an entity or ALL_ENTITIES, and the times are wall-clock times."""
        self.path = path
        self.kind = kind
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.is_over = False
        self._deferred_replies: dict[object, list[Callable[[], None]]] = {}
        """Replies to send when the outage ends, by requester."""

    def error_for(self, path: str) -> ServiceBusError:
        """Return the error for requests to an entity during this outage."""
        until = datetime_of(self.until_ms).isoformat(timespec="seconds").replace("+00:00", "Z")
        explanation = f"an outage is rehearsed until {until}, or until an operator ends it. Try again then."
        if self.kind is OutageKind.BUSY:
            return ServerBusy(f"'{path}' is too busy: {explanation}")
        text = f"'{path}' is unavailable: {explanation}"
        return SilentOutage(text, self) if self.kind is OutageKind.SILENT else StoreUnavailable(text)

    @property
    def deferred_reply_count(self) -> int:
        """Number of replies that are held back."""
        return sum(map(len, self._deferred_replies.values()))

    def defer_reply(self, requester: object, send_reply: Callable[[], None]) -> None:
        """Call `send_reply` when the outage ends, unless `discard_replies` is called for the requester first."""
        if self.is_over:
            send_reply()
        else:
            self._deferred_replies.setdefault(requester, []).append(send_reply)

    def discard_replies(self, requester: object) -> None:
        """Drop the replies to a requester that is gone."""
        self._deferred_replies.pop(requester, None)

    def finish(self) -> None:
        """End the outage and send all replies that were held back."""
        self.is_over = True
        replies, self._deferred_replies = self._deferred_replies, {}
        for send_reply in [send_reply for pending in replies.values() for send_reply in pending]:
            send_reply()


class OutageTarget(Protocol):
    """An entity, as seen by `Outages`."""

    @property
    def path(self) -> str:
        """Path of the entity."""

    def set_outage(self, outage: Outage | None) -> None:
        """Set the entity's present outage, or None."""


class Outages:
    """Active outages of a namespace."""

    def __init__(self, clock: Clock, timers: Timers, entities: Mapping[str, OutageTarget]) -> None:
        """Start without outages; `entities` are the namespace's entities, by canonical key of their paths."""
        self.on_expired: Callable[[Outage], None] | None = None
        """Callback for each outage that ends because its time is up."""
        self._clock = clock
        self._timers = timers
        self._entities = entities
        self._by_key: dict[str, Outage] = {}

    def all(self) -> list[Outage]:
        """Return all active outages."""
        return list(self._by_key.values())

    def begin(self, path: str, kind: OutageKind, seconds: float, *, times_ms: tuple[int, int] | None = None) -> Outage:
        """Begin an outage, replacing any outage on the same path; raise EntityNotFound or ArgumentOutOfRange.

        `times_ms` are the start and end of an outage that began in another process (default: from now on).
        """
        if not MIN_OUTAGE_S <= seconds <= MAX_OUTAGE_S:
            raise ArgumentOutOfRange(
                f"invalid duration of {seconds:g} s: an outage can last {MIN_OUTAGE_S:g} to {MAX_OUTAGE_S:g} s"
            )
        key = paths.canonical_key(path)
        if path != ALL_ENTITIES:
            if key not in self._entities:
                raise EntityNotFound(path)
            path = self._entities[key].path
        now_ms = self._clock.wall_ms()
        since_ms, until_ms = times_ms or (now_ms, now_ms + round(seconds * 1000))
        outage = Outage(path, kind, since_ms=since_ms, until_ms=until_ms)
        previous = self._by_key.get(key)
        self._by_key[key] = outage
        self._apply_to_all()
        self._timers.call_at(self._clock.monotonic_s() + seconds, lambda: self._expire(key, outage))
        if previous is not None:
            previous.finish()
        return outage

    def end(self, path: str | None = None) -> list[Outage]:
        """End the outage on this path, or all outages (None); return the outages that were active."""
        keys = (
            list(self._by_key) if path is None else [key for key in [paths.canonical_key(path)] if key in self._by_key]
        )
        ended = [self._by_key.pop(key) for key in keys]
        self._apply_to_all()
        for outage in ended:
            outage.finish()
        return ended

    def apply_to(self, entity: OutageTarget) -> None:
        """Set an entity's outage: the outage on its own path, or else on its topic, or else on the whole namespace."""
        if self._by_key:
            entity.set_outage(self._find(paths.canonical_key(entity.path)))

    def discard_replies(self, requester: object) -> None:
        """Drop all replies to a requester that is gone."""
        for outage in self._by_key.values():
            outage.discard_replies(requester)

    def _find(self, key: str) -> Outage | None:
        outages = (self._by_key.get(path) for path in (key, paths.parent_entity(key), ALL_ENTITIES))
        return next((outage for outage in outages if outage is not None), None)

    def _apply_to_all(self) -> None:
        for key, entity in self._entities.items():
            entity.set_outage(self._find(key))

    def _expire(self, key: str, outage: Outage) -> None:
        if self._by_key.get(key) is outage:
            self.end(key)
            if self.on_expired is not None:
                self.on_expired(outage)
