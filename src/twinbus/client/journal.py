"""The journal of a client: what became of every message it sent or settled, on this machine's disk, for the audit.

    journal = Journal("audit")
    journal.attach(factory)
    ...
    await journal.close()

With `journal_dir` a pair keeps one for both its factories. Owns: the rows that wait, and the thread that writes them: a
send costs a tuple at the end of a queue. Where the disk is slower than the application, sends do not wait for it: rows
are lost, counted, and a row says how many, so that an audit knows what it cannot know. For the same reason a journal
says when it began, that it is alive, where its receivers are, and that it has ended. How rows lie in files is in
`journal_file`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.client.clock import SystemClock
from twinbus.client.errors import may_have_happened
from twinbus.client.events import (
    FROM_SPOOL,
    MESSAGE_EVENTS,
    ReceiverOpened,
    ScheduleCancelled,
    SendFailed,
    Sent,
    Settled,
    SettledInBulk,
    TransactionEnded,
)
from twinbus.client.journal_file import MAX_TEXT_LENGTH, JournalFiles
from twinbus.client.pairing.observe.events import PairingEvent
from twinbus.model.annotations import ENQUEUED_TIME
from twinbus.model.times import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twinbus.client.clock import Clock
    from twinbus.client.events import MessageEvent
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.journal_file import Row

log: Final = logging.getLogger(__name__)

BATCH_ROWS: Final = 10_000
"""Rows that are written as soon as there are so many; fewer wait for a second."""
WRITE_INTERVAL_S: Final = 1.0
ALIVE_INTERVAL_S: Final = 30.0
"""A journal that had nothing to write for so long says so: one that is silent for much longer has ended."""
MAX_QUEUED_ROWS: Final = 100_000
CLOSE_TIMEOUT_S: Final = 10.0
"""How long a disk that does not take the last rows holds up the end."""
_SEND_OUTCOMES: Final = frozenset({"parked", "spooled"})
"""Events that are the outcome of a send."""


class Journal:
    """Of one or several factories."""

    def __init__(self, folder: Path | str, *, clock: Clock | None = None) -> None:
        """Make the folder if it is not there. ImportError, with what to do, where pyarrow is missing."""
        self.clock = clock if clock is not None else SystemClock()
        self.lost = 0
        """Rows that the disk was too slow for."""
        self._reported_lost = 0
        self._lost_lock = threading.Lock()
        self._files = JournalFiles(folder, self.clock)
        self._queued_rows: deque[Row] = deque()
        self._unwritten_rows: list[Row] = []
        """Rows that could not be written: they are tried again."""
        self._unsubscribes: list[Callable[[], None]] = []
        """Called to hear no more of a factory."""
        self._wake = threading.Event()
        self._is_closed = False
        self._last_write_s = time.monotonic()
        self._queued_rows.append(self._journal_row("began"))
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="twinbus-journal", daemon=True)
        self._thread.start()
        atexit.register(self.close_now)

    def attach(self, factory: MessagingFactory) -> FactoryJournal:
        """Write down, from now on, what a factory's senders and receivers do."""
        settings = factory.settings
        rows = FactoryJournal(self, factory.address, settings.client_id, settings.clock)
        self._unsubscribes.append(factory.events.listen(rows.on_event, MESSAGE_EVENTS))
        return rows

    def write(self, row: Row) -> None:
        """Have a row written soon."""
        waiting = self._queued_rows
        if len(waiting) >= MAX_QUEUED_ROWS or self._is_closed:
            with self._lost_lock:
                self.lost += 1
            return
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            self._wake.set()

    def flush_soon(self) -> None:
        """Have what waits written at once."""
        self._wake.set()

    async def close(self) -> None:
        """Write what waits, and end. May be called again."""
        for end in self._unsubscribes:
            end()
        try:
            await asyncio.to_thread(self.close_now)
        except RuntimeError:  # the process ends: there are no more threads, and no loop that would have to go on
            self.close_now()

    def close_now(self) -> None:
        """The same, for a program that ends."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close_now)
            self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(WRITE_INTERVAL_S)
            self._wake.clear()
            if not self._queued_rows and time.monotonic() - self._last_write_s >= ALIVE_INTERVAL_S:
                self._queued_rows.append(self._journal_row("alive"))
            self._write_queued()
        self._queued_rows.append(self._journal_row("ended"))
        self._write_queued()
        self._files.close()

    def _write_queued(self) -> None:
        while rows := self._unwritten_rows or self._next_rows():
            self._unwritten_rows = rows
            try:
                self._files.write(rows)
            except OSError as error:
                log.error("%d rows of the journal are not written, and tried again: %s", len(rows), error)  # noqa: TRY400  # no traceback each second
                return
            except Exception:
                log.exception("%d rows of the journal cannot be written", len(rows))
                with self._lost_lock:
                    self.lost += len(rows)
                self._unwritten_rows = []
                return
            self._unwritten_rows = []
            self._last_write_s = time.monotonic()

    def _next_rows(self) -> list[Row]:
        waiting = self._queued_rows
        rows = [waiting.popleft() for _ in range(min(len(waiting), BATCH_ROWS))]
        missing = self.lost - self._reported_lost
        if missing:
            self._reported_lost += missing
            rows.append(self._journal_row("rows lost", "the disk was slower than the application", missing))
        return rows

    def _journal_row(self, outcome: str, reason: str | None = None, count: int = 1) -> Row:
        about_none = (None, None, None, None, None)
        return (self.clock.wall_ms(), "journal", *about_none, outcome, reason, count, None, None, None, None)


class FactoryJournal:
    """The rows of one factory."""

    def __init__(self, journal: Journal, namespace: str, client_id: str, clock: Clock) -> None:
        """Made by `attach`."""
        self._write = journal.write
        self._flush_soon = journal.flush_soon
        self._namespace = namespace
        self._client_id = client_id
        self._clock = clock

    def on_event(self, event: MessageEvent | PairingEvent) -> None:
        """Write the rows of an event."""
        match event:
            case Sent():
                self._write_sent(event)
            case Settled():
                self._write_settled(event)
            case SendFailed():
                self._write_failed(event)
            case ReceiverOpened():
                # At once: should the next rows be lost, it is known whose messages they may have been about.
                self._write_row("receiver", event.path, "opened")
                self._flush_soon()
            case SettledInBulk():
                self._write_row("settlement", event.path, event.settlement, count=event.count)
            case ScheduleCancelled():
                for number in event.sequence_numbers:
                    self._write_row("settlement", event.path, "cancelled", sequence_number=number)
            case TransactionEnded():
                self._write_row("transaction", None, event.outcome, f"transaction {event.transaction_key}")
            case PairingEvent():
                self._write_pairing_event(event)

    def _write_sent(self, event: Sent) -> None:
        """Write a row for each message."""
        now_ms, outcome = self._clock.wall_ms(), "scheduled" if event.scheduled_sequence_numbers else "sent"
        namespace, client_id = self._namespace, self._client_id
        reason = None if event.transaction_key is None else f"transaction {event.transaction_key}"
        if event.is_from_spool:
            reason = FROM_SPOOL
        for at, message in enumerate(event.messages):
            number = event.scheduled_sequence_numbers[at] if event.scheduled_sequence_numbers else None
            lives = message.time_to_live
            self._write(
                (
                    now_ms,
                    "send",
                    message.message_id,
                    event.path,
                    message.session_id,
                    number,
                    None,
                    outcome,
                    reason,
                    1,
                    namespace,
                    client_id,
                    None if lives is None else duration_ms(lives),
                    None,
                )
            )

    def _write_failed(self, event: SendFailed) -> None:
        """Write a row for each message: failed, or unknown where a namespace may have it all the same."""
        outcome, reason = "unknown" if may_have_happened(event.error) else "failed", _reason_of(event.error)
        for message in event.messages:
            self._write_row(
                "send", event.path, outcome, reason, message_id=message.message_id, session_id=message.session_id
            )

    def _write_settled(self, event: Settled) -> None:
        """Write a row, with the reason if the settlement failed."""
        message, error = event.message, event.error
        reason = None if event.transaction_key is None else f"transaction {event.transaction_key}"
        self._write_row(
            "settlement",
            event.path,
            event.settlement if error is None else f"not {event.settlement}",
            reason if error is None else _reason_of(error),
            message_id=message.message_id,
            session_id=message.session_id,
            sequence_number=message.sequence_number,
            enqueued_ms=message.received.integer(ENQUEUED_TIME) or None,
        )

    def _write_pairing_event(self, event: PairingEvent) -> None:
        """Write a row for an event of a pair; where that is the outcome of a send, as one of a send."""
        happened = event.kind.value
        self._write_row(
            "send" if happened in _SEND_OUTCOMES else "event",
            event.path,
            happened,
            event.reason,
            message_id=event.message_id,
            session_id=event.session_id,
            sequence_number=event.sequence_number,
            backlog_queue=event.backlog_queue,
            count=event.count,
            time_to_live_ms=event.time_to_live_ms,
        )

    def _write_row(  # noqa: PLR0913  # as many as a row has columns
        self,
        kind: str,
        path: str | None,
        outcome: str,
        reason: str | None = None,
        *,
        message_id: object = None,
        session_id: str | None = None,
        sequence_number: int | None = None,
        backlog_queue: str | None = None,
        count: int = 1,
        time_to_live_ms: int | None = None,
        enqueued_ms: int | None = None,
    ) -> None:
        where = (self._namespace, self._client_id)
        about = (message_id, path, session_id, sequence_number, backlog_queue)
        said = (outcome, reason and reason[:MAX_TEXT_LENGTH], count)
        self._write((self._clock.wall_ms(), kind, *about, *said, *where, time_to_live_ms, enqueued_ms))


def _reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
