"""The alarms of a pair, raised for conditions that an operator has to resolve.

Owns: the kinds of alarms, and the schedule of backlog checks. The checks run three times per `alarm_after`. They start
with the syphon, or with an event such as a parked message or a failed pump, and stop when no message is parked and no
alarm is raised. After that, a healthy pair sends no requests for alarms.

Messages that are parked for a long time raise no alarm while they are being drained. The alarm is raised if the oldest
message in a queue is old, and was already the oldest at the previous check.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.backlog.inspection import inspect
from twinbus.client.pairing.errors import SpoolFailed
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.times import datetime_of, duration_s, milliseconds_of

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client.pairing.backlog.inspection import BacklogQueueContents
    from twinbus.client.pairing.observe.events import PairingEvent
    from twinbus.client.pairing.pairing import Pairing

log: Final = logging.getLogger(__name__)

CHECKS_PER_PERIOD: Final = 3
"""The number of checks per `alarm_after`."""
CHECK_TIMEOUT_S: Final = 5.0
NEARLY_FULL_SHARE: Final = 0.8
EVENT_KINDS: Final = frozenset(
    {
        EventKind.PARKED,
        EventKind.DESTINATION_REFUSES,
        EventKind.DESTINATION_ACCEPTS,
        EventKind.DEAD_LETTERED,
        EventKind.SPOOL_REFUSED,
        EventKind.PUMP_FAILED,
        EventKind.UNPROTECTED,
        EventKind.PROTECTED,
    }
)
_MEGABYTE: Final = 1_048_576


class AlarmKind(Enum):
    """Kinds of alarms."""

    NOT_DRAINED = "parked messages are not taken back"
    EXTRA_BACKLOG = "messages lie in a backlog queue that nobody drains"
    """The queue is beyond the configured number of backlog queues."""
    DESTINATION_REFUSES = "a destination refuses its parked messages"
    """The entity is disabled or missing, or the key is not accepted. The messages stay in the backlog or the spool."""
    DEAD_LETTERED = "messages were dead-lettered in a backlog queue"
    SPOOL_REFUSED = "messages were refused from the spool"
    NEARLY_FULL = "a backlog queue is nearly full"
    """A full queue is left out of the rotation, and the other queues are used."""
    UNPROTECTED = "the secondary could not be prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A raised alarm."""

    kind: AlarmKind
    backlog_queue: str | None
    reason: str
    since: dt.datetime


_CHECKED_KINDS: Final = frozenset(AlarmKind) - {AlarmKind.SPOOL_REFUSED}
"""Kinds of alarms that keep the backlog checks running while they are raised."""


class Alarms:
    """The alarms of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Create the alarms of a pairing, with none raised. Checks begin with `start`."""
        self.contents: dict[str, BacklogQueueContents] = {}
        """The contents of each backlog queue at the last check; empty before the first check."""
        self._pairing = pairing
        self._raised: dict[tuple[AlarmKind, str | None, str | None], Alarm] = {}
        """The raised alarms by kind, backlog queue and destination."""
        self._oldest_numbers: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._clock = pairing.primary.settings.clock
        self._alarm_after_s = duration_s(pairing.options.alarm_after)

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """The raised alarms, oldest first."""
        return tuple(self._raised.values())

    @property
    def is_checking(self) -> bool:
        """Whether the backlog is checked periodically."""
        return self._task is not None

    def on_event(self, event: PairingEvent) -> None:
        """Raise or clear an alarm after an event, and start backlog checks if necessary."""
        if event.kind is EventKind.UNPROTECTED:
            self._raise(AlarmKind.UNPROTECTED, None, event.reason or "sends fail if the primary fails")
        elif event.kind is EventKind.PROTECTED:
            self._clear(AlarmKind.UNPROTECTED, None)
        elif event.kind is EventKind.DESTINATION_REFUSES:
            location = "the spool" if event.backlog_queue is None else f"'{event.backlog_queue}'"
            reason = f"messages for '{event.path}' stay in {location}: {event.reason}"
            self._raise(AlarmKind.DESTINATION_REFUSES, event.backlog_queue, reason, event.path)
        elif event.kind is EventKind.DESTINATION_ACCEPTS:
            self._clear(AlarmKind.DESTINATION_REFUSES, event.backlog_queue, event.path)
        elif event.kind is EventKind.SPOOL_REFUSED:
            self.check_spool()
        else:
            if event.kind is EventKind.DEAD_LETTERED and event.backlog_queue is not None:
                self._raise_dead_lettered(event.backlog_queue, None)
            self.start()

    def start(self) -> None:
        """Start periodic checks, which continue while messages are parked or alarms are raised."""
        if self._task is None and not self._pairing.is_closed:
            self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Stop the checks."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._alarm_after_s / CHECKS_PER_PERIOD)
                await self.check_backlog()
                if not self._may_be_parked() and not any(kind in _CHECKED_KINDS for kind, _, _ in self._raised):
                    return
        finally:
            self._task = None

    def _may_be_parked(self) -> bool:
        return any(contents.parked != 0 for contents in self.contents.values())

    async def check_backlog(self) -> None:
        """Check the backlog once, and raise or clear alarms. An alarm stays unchanged if its data cannot be read."""
        rotation = self._pairing.rotation
        queues, extra = list(rotation.queues), list(rotation.extra_paths)
        paths = [queue.path for queue in queues]
        manager, secondary = self._pairing.options.secondary_namespace_manager, self._pairing.secondary
        inspections = [
            inspect(secondary, manager, path, sample=1, limit_s=CHECK_TIMEOUT_S) for path in (*paths, *extra)
        ]
        self.contents = dict(zip((*paths, *extra), await asyncio.gather(*inspections), strict=True))
        for queue in queues:
            self._check_age(queue.path, self.contents[queue.path])
            self._check_size(queue.path, self.contents[queue.path].size_bytes, queue.max_size_mb)
        for path in extra:
            self._check_extra_queue(path, self.contents[path])
        for path, contents in self.contents.items():
            self._check_dead_letters(path, contents.dead_lettered)
        spool = self._pairing.spool
        if spool is not None:
            with suppress(SpoolFailed, OSError):  # the spool reports its own failures
                await spool.count_refused()
            self.check_spool()

    def check_spool(self) -> None:
        """Raise or clear the alarm for refused messages in the spool."""
        spool = self._pairing.spool
        status = None if spool is None else spool.status
        if spool is not None and status is not None and status.refused:
            reason = (
                f"{_count_of_messages(status.refused)} in {spool.folder / 'refused'}, each with a file that has the"
                " reason: fix the cause, then send them again with"
                " `pairing.resend_refused()`"
            )
            self._raise(AlarmKind.SPOOL_REFUSED, None, reason)
        else:
            self._clear(AlarmKind.SPOOL_REFUSED, None)

    def _check_age(self, path: str, contents: BacklogQueueContents) -> None:
        if contents.for_entities is None:  # peeking failed
            return
        if contents.oldest is None or contents.oldest_number is None:
            self._oldest_numbers.pop(path, None)
            self._clear(AlarmKind.NOT_DRAINED, path)
            return
        is_same = self._oldest_numbers.get(path) == contents.oldest_number
        self._oldest_numbers[path] = contents.oldest_number
        age_s = (self._clock.wall_ms() - milliseconds_of(contents.oldest)) / 1000
        if is_same and age_s > self._alarm_after_s:
            count = "some messages" if contents.parked is None else f"{contents.parked:,} messages"
            hint = "" if self._pairing.syphon is not None else "; this program runs no syphon: check that another does"
            reason = f"{count} in '{path}', the oldest for {age_s:.0f} s, are not drained{hint}"
            self._raise(AlarmKind.NOT_DRAINED, path, reason)
        elif not is_same:
            self._clear(AlarmKind.NOT_DRAINED, path)

    def _check_size(self, path: str, size_bytes: int | None, max_size_mb: int) -> None:
        if size_bytes is None:
            return
        if size_bytes >= NEARLY_FULL_SHARE * max_size_mb * _MEGABYTE:
            reason = f"'{path}' holds {size_bytes / _MEGABYTE:,.0f} MB of {max_size_mb:,}"
            self._raise(AlarmKind.NEARLY_FULL, path, reason)
        else:
            self._clear(AlarmKind.NEARLY_FULL, path)

    def _check_extra_queue(self, path: str, contents: BacklogQueueContents) -> None:
        if contents.parked or contents.oldest is not None:
            count = "messages" if contents.parked is None else f"{contents.parked:,} messages"
            reason = (
                f"{count} in '{path}', which is not one of the {len(self._pairing.rotation.queues)} backlog queues in"
                " use and is not drained: run `twinbus pair drain --extra`"
            )
            self._raise(AlarmKind.EXTRA_BACKLOG, path, reason)
        elif contents.parked == 0 or contents.for_entities is not None:
            self._clear(AlarmKind.EXTRA_BACKLOG, path)

    def _check_dead_letters(self, path: str, count: int | None) -> None:
        if count:
            self._raise_dead_lettered(path, count)
        elif count == 0:
            self._clear(AlarmKind.DEAD_LETTERED, path)

    def _raise_dead_lettered(self, path: str, count: int | None) -> None:
        """Raise the alarm for dead-lettered messages; the text has their count, if it is known."""
        messages = "messages" if count is None else _count_of_messages(count)
        reason = (
            f"{messages} in '{path}/$DeadLetterQueue', each with the reason: fix the cause, then send them again with"
            " `twinbus pair drain --dead-letters`"
        )
        self._raise(AlarmKind.DEAD_LETTERED, path, reason)

    def _raise(self, kind: AlarmKind, backlog_queue: str | None, reason: str, path: str | None = None) -> None:
        previous = self._raised.get((kind, backlog_queue, path))
        since = datetime_of(self._clock.wall_ms()) if previous is None else previous.since
        alarm = Alarm(kind=kind, backlog_queue=backlog_queue, reason=reason, since=since)
        self._raised[kind, backlog_queue, path] = alarm
        if previous is None:
            self._pairing.event_publisher.emit(
                EventKind.ALARM, backlog_queue=backlog_queue, reason=f"{kind.value}: {reason}"
            )

    def _clear(self, kind: AlarmKind, backlog_queue: str | None, path: str | None = None) -> None:
        if self._raised.pop((kind, backlog_queue, path), None) is not None:
            self._pairing.event_publisher.emit(EventKind.ALARM_OVER, backlog_queue=backlog_queue, reason=kind.value)


def _count_of_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
