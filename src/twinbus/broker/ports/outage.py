"""Outages on purpose: an entity, or all of them, refuses for a while, as if its store did not work.

Owns: which outages there are and until when, and who waits for the end of a silent one. An entity that has one refuses
what is sent to it and gives nothing out; what is out can be settled, so nothing is lost, and nothing that was refused
is stored later: who was not told anything is refused in the end. None is kept over a restart.
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
    """The entity does not answer: who was about to say so says it when the outage is over."""

    def __init__(self, text: str, outage: Outage) -> None:
        """`text` is what is said then."""
        super().__init__(text)
        self.outage = outage


class Outage:
    """One outage, from its beginning to its end."""

    def __init__(self, path: str, kind: OutageKind, *, since_ms: int, until_ms: int) -> None:
        """`path` is that of an entity, or `EVERYTHING`; the times are of the wall clock."""
        self.path = path
        self.kind = kind
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.is_over = False
        self._deferred_replies: dict[object, list[Callable[[], None]]] = {}
        """What is to be told in the end, by who would tell it."""

    def error_for(self, path: str) -> ServiceBusError:
        """Why an entity does not do what is asked of it."""
        until = datetime_of(self.until_ms).isoformat(timespec="seconds").replace("+00:00", "Z")
        rest = f"an outage is rehearsed until {until}, or until somebody ends it. Try again then."
        if self.kind is OutageKind.BUSY:
            return ServerBusy(f"'{path}' is too busy: {rest}")
        text = f"'{path}' is unavailable: {rest}"
        return SilentOutage(text, self) if self.kind is OutageKind.SILENT else StoreUnavailable(text)

    @property
    def deferred_reply_count(self) -> int:
        """How many are not answered."""
        return sum(map(len, self._deferred_replies.values()))

    def defer_reply(self, requester: object, send_reply: Callable[[], None]) -> None:
        """`owner` tells something when this is over, unless it has gone by then (`forget`)."""
        if self.is_over:
            send_reply()
        else:
            self._deferred_replies.setdefault(requester, []).append(send_reply)

    def discard_replies(self, requester: object) -> None:
        """Nobody is there any more whom it could tell."""
        self._deferred_replies.pop(requester, None)

    def finish(self) -> None:
        """It is over: whoever waits is told."""
        self.is_over = True
        waiting, self._deferred_replies = self._deferred_replies, {}
        for tell in [tell for calls in waiting.values() for tell in calls]:
            tell()


class OutageTarget(Protocol):
    """An entity, as far as it is of interest here."""

    @property
    def path(self) -> str:
        """Where it is found."""

    def set_outage(self, outage: Outage | None) -> None:
        """It has this outage from now on, or none."""


class Outages:
    """The outages of a namespace."""

    def __init__(self, clock: Clock, timers: Timers, entities: Mapping[str, OutageTarget]) -> None:
        """None yet. `entities` are those of the namespace now, by the keys of their paths."""
        self.on_expired: Callable[[Outage], None] | None = None
        """Hears of each that has lasted as long as it was to."""
        self._clock = clock
        self._timers = timers
        self._entities = entities
        self._by_key: dict[str, Outage] = {}

    def all(self) -> list[Outage]:
        """Those there are now."""
        return list(self._by_key.values())

    def begin(self, path: str, kind: OutageKind, seconds: float, *, times_ms: tuple[int, int] | None = None) -> Outage:
        """Switch one on, in place of another one of the same path. EntityNotFound, ArgumentOutOfRange.

        `times_ms` are those that are told of one that was switched on elsewhere: since when, and until when.
        """
        if not MIN_OUTAGE_S <= seconds <= MAX_OUTAGE_S:
            raise ArgumentOutOfRange(f"an outage of {seconds:g} s; it can last {MIN_OUTAGE_S:g} to {MAX_OUTAGE_S:g} s")
        key = paths.canonical_key(path)
        if path != ALL_ENTITIES:
            if key not in self._entities:
                raise EntityNotFound(path)
            path = self._entities[key].path
        now_ms = self._clock.wall_ms()
        since_ms, until_ms = times_ms or (now_ms, now_ms + round(seconds * 1000))
        outage = Outage(path, kind, since_ms=since_ms, until_ms=until_ms)
        before = self._by_key.get(key)
        self._by_key[key] = outage
        self._apply_to_all()
        self._timers.call_at(self._clock.monotonic_s() + seconds, lambda: self._expire(key, outage))
        if before is not None:
            before.finish()
        return outage

    def end(self, path: str | None = None) -> list[Outage]:
        """Switch off the one of that path, or all; those that were on."""
        keys = (
            list(self._by_key) if path is None else [key for key in [paths.canonical_key(path)] if key in self._by_key]
        )
        ended = [self._by_key.pop(key) for key in keys]
        self._apply_to_all()
        for outage in ended:
            outage.finish()
        return ended

    def apply_to(self, entity: OutageTarget) -> None:
        """An entity has the outage of its own path, of its topic's, or of the namespace's, if there is one."""
        if self._by_key:
            entity.set_outage(self._find(paths.canonical_key(entity.path)))

    def discard_replies(self, requester: object) -> None:
        """Somebody has gone who waited for the end of one."""
        for outage in self._by_key.values():
            outage.discard_replies(requester)

    def _find(self, key: str) -> Outage | None:
        found = (self._by_key.get(one) for one in (key, paths.parent_entity(key), ALL_ENTITIES))
        return next((outage for outage in found if outage is not None), None)

    def _apply_to_all(self) -> None:
        for key, entity in self._entities.items():
            entity.set_outage(self._find(key))

    def _expire(self, key: str, outage: Outage) -> None:
        if self._by_key.get(key) is outage:
            self.end(key)
            if self.on_expired is not None:
                self.on_expired(outage)
