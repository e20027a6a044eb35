"""Alarms of a pair: what needs somebody's attention (Q20).

Owns: which alarms there are, and when the backlog is looked at for them: at most three times in `alarm_after`, and only
while something is parked or a pump stands still. A healthy pair asks nothing (R009), and an idle syphon no more than
its polls (R072).

That messages are parked for long is no alarm while they are being taken back: it is one when the oldest message of a
queue is old, and has been the oldest at the last look, too.
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
"""In `alarm_after`."""
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
    """What can be wrong."""

    NOT_DRAINED = "parked messages are not taken back"
    EXTRA_BACKLOG = "messages lie in a backlog queue that nobody drains"
    """It is beyond those asked for (R022, R023)."""
    DESTINATION_REFUSES = "a destination refuses its parked messages"
    """It is disabled or missing, or the key is not accepted: the messages stay in the backlog, or the spool (Q19)."""
    DEAD_LETTERED = "messages were dead-lettered in a backlog queue"
    SPOOL_REFUSED = "messages were refused from the spool"
    NEARLY_FULL = "a backlog queue is nearly full"
    """A full one is left out, and others are used while there are any (Q11)."""
    UNPROTECTED = "the secondary could not be prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One thing that is wrong."""

    kind: AlarmKind
    backlog_queue: str | None
    reason: str
    since: dt.datetime


_CHECKED_KINDS: Final = frozenset(AlarmKind) - {AlarmKind.SPOOL_REFUSED}
"""Alarms that need further looks at the backlog."""


class Alarms:
    """Of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Nothing is wrong, and nothing is looked at."""
        self.contents: dict[str, BacklogQueueContents] = {}
        """What was seen in each backlog queue at the last look; empty where there was none."""
        self._pairing = pairing
        self._raised: dict[tuple[AlarmKind, str | None, str | None], Alarm] = {}
        """By kind, backlog queue and destination."""
        self._oldest_numbers: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._clock = pairing.primary.settings.clock
        self._alarm_after_s = duration_s(pairing.options.alarm_after)

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """Those there are now, the oldest first."""
        return tuple(self._raised.values())

    @property
    def is_checking(self) -> bool:
        """The backlog is looked at from time to time."""
        return self._task is not None

    def on_event(self, event: PairingEvent) -> None:
        """Something happened that may begin or end an alarm."""
        if event.kind is EventKind.UNPROTECTED:
            self._raise(AlarmKind.UNPROTECTED, None, event.reason or "sends fail if the primary does")
        elif event.kind is EventKind.PROTECTED:
            self._clear(AlarmKind.UNPROTECTED, None)
        elif event.kind is EventKind.DESTINATION_REFUSES:
            place = "the spool" if event.backlog_queue is None else f"'{event.backlog_queue}'"
            reason = f"messages for '{event.path}' stay in {place}: {event.reason}"
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
        """Look from now on, for as long as something is parked."""
        if self._task is None and not self._pairing.is_closed:
            self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Look no more."""
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
        return any(found.parked != 0 for found in self.contents.values())

    async def check_backlog(self) -> None:
        """Look once, and raise or end alarms. What cannot be asked now stays as it is."""
        rotation = self._pairing.rotation
        queues, extra = list(rotation.queues), list(rotation.extra_paths)
        mine = [queue.path for queue in queues]
        manager, secondary = self._pairing.options.secondary_namespace_manager, self._pairing.secondary
        looked = [inspect(secondary, manager, path, sample=1, limit_s=CHECK_TIMEOUT_S) for path in (*mine, *extra)]
        self.contents = dict(zip((*mine, *extra), await asyncio.gather(*looked), strict=True))
        for queue in queues:
            self._check_age(queue.path, self.contents[queue.path])
            self._check_size(queue.path, self.contents[queue.path].size_bytes, queue.max_size_mb)
        for path in extra:
            self._check_extra_queue(path, self.contents[path])
        for path, found in self.contents.items():
            self._check_dead_letters(path, found.dead_lettered)
        spool = self._pairing.spool
        if spool is not None:
            with suppress(SpoolFailed, OSError):  # it is closed, or its disk is sick: other alarms say so
                await spool.count_refused()
            self.check_spool()

    def check_spool(self) -> None:
        """Raise or end the alarm of messages that were refused from the spool."""
        spool = self._pairing.spool
        status = None if spool is None else spool.status
        if spool is not None and status is not None and status.refused:
            reason = (
                f"{_count_of_messages(status.refused)} in {spool.folder / 'refused'}, each with the reason "
                "beside it: remove the"
                " cause, then `pairing.resend_refused()` sends them again"
            )
            self._raise(AlarmKind.SPOOL_REFUSED, None, reason)
        else:
            self._clear(AlarmKind.SPOOL_REFUSED, None)

    def _check_age(self, path: str, contents: BacklogQueueContents) -> None:
        if contents.for_entities is None:  # it could not be peeked at
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
            drained = "" if self._pairing.syphon is not None else "; this program runs no syphon: does another one?"
            reason = f"{count} in '{path}', the oldest for {age_s:.0f} s, and nothing takes them back{drained}"
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
                f"{count} in '{path}', and {len(self._pairing.rotation.queues)} backlog queues are used: it is none of"
                " them, and is not drained; `twinbus pair drain --extra` does that"
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
        """Raise it with the number of messages, where that is known."""
        found = "messages" if count is None else _count_of_messages(count)
        reason = (
            f"{found} in '{path}/$DeadLetterQueue', each with the reason: remove the cause, then"
            " `twinbus pair drain --dead-letters` sends them again"
        )
        self._raise(AlarmKind.DEAD_LETTERED, path, reason)

    def _raise(self, kind: AlarmKind, backlog_queue: str | None, reason: str, path: str | None = None) -> None:
        before = self._raised.get((kind, backlog_queue, path))
        since = datetime_of(self._clock.wall_ms()) if before is None else before.since
        alarm = Alarm(kind=kind, backlog_queue=backlog_queue, reason=reason, since=since)
        self._raised[kind, backlog_queue, path] = alarm
        if before is None:
            self._pairing.event_publisher.emit(
                EventKind.ALARM, backlog_queue=backlog_queue, reason=f"{kind.value}: {reason}"
            )

    def _clear(self, kind: AlarmKind, backlog_queue: str | None, path: str | None = None) -> None:
        if self._raised.pop((kind, backlog_queue, path), None) is not None:
            self._pairing.event_publisher.emit(EventKind.ALARM_OVER, backlog_queue=backlog_queue, reason=kind.value)


def _count_of_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
