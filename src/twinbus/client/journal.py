"""The journal of a client: a record on the local disk of every message sent or settled, for the audit.

    journal = Journal("audit")
    journal.attach(factory)
    ...
    await journal.close()

A pair with `journal_dir` keeps one journal for both of its factories. Owns the queue of rows and the thread that writes
them, so that a send only appends a tuple. If the disk is slower than the application, sends do not wait: rows are
dropped and counted, and a row reports the number, so that an audit knows that its data is incomplete. For the same
reason, a journal records when it starts and stops, that it is alive, and which entities have receivers. The file format
is in `journal_file`.
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
"""Number of queued rows that are written at once; fewer rows wait for WRITE_INTERVAL_S."""
WRITE_INTERVAL_S: Final = 1.0
ALIVE_INTERVAL_S: Final = 30.0
"""Idle time after which a journal writes an `alive` row, so that readers can tell idle journals from dead ones."""
MAX_QUEUED_ROWS: Final = 100_000
CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` waits for the last rows to be written."""
_SEND_OUTCOMES: Final = frozenset({"parked", "spooled"})
"""Kinds of pairing events that report the outcome of a send."""


class Journal:
    """Journal of one or several factories."""

    def __init__(self, folder: Path | str, *, clock: Clock | None = None) -> None:
        """Create the folder if it is missing, and start the writing thread."""
        self.clock = clock if clock is not None else SystemClock()
        self.lost = 0
        """Number of rows dropped because the disk was too slow, a write failed, or the journal was closed."""
        self._reported_lost = 0
        self._lost_lock = threading.Lock()
        self._files = JournalFiles(folder, self.clock)
        self._queued_rows: deque[Row] = deque()
        self._unwritten_rows: list[Row] = []
        """Rows whose write failed, to be retried."""
        self._unsubscribes: list[Callable[[], None]] = []
        """Functions that stop listening to the factories."""
        self._wake = threading.Event()
        self._is_closed = False
        self._last_write_s = time.monotonic()
        self._queued_rows.append(self._journal_row("began"))
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="twinbus-journal", daemon=True)
        self._thread.start()
        atexit.register(self.close_now)

    def attach(self, factory: MessagingFactory) -> FactoryJournal:
        """Record the events of a factory's senders and receivers from now on."""
        settings = factory.settings
        rows = FactoryJournal(self, factory.address, settings.client_id, settings.clock)
        self._unsubscribes.append(factory.events.listen(rows.on_event, MESSAGE_EVENTS))
        return rows

    def write(self, row: Row) -> None:
        """Queue a row for writing; drop and count it if the queue is full."""
        queued = self._queued_rows
        if len(queued) >= MAX_QUEUED_ROWS or self._is_closed:
            with self._lost_lock:
                self.lost += 1
            return
        queued.append(row)
        if len(queued) == BATCH_ROWS:
            self._wake.set()

    def flush_soon(self) -> None:
        """Wake the writing thread to write the queued rows."""
        self._wake.set()

    async def close(self) -> None:
        """Stop listening, write the queued rows and close the file. Idempotent."""
        for unsubscribe in self._unsubscribes:
            unsubscribe()
        try:
            await asyncio.to_thread(self.close_now)
        except RuntimeError:  # at interpreter exit no thread can be started
            self.close_now()

    def close_now(self) -> None:
        """Write the queued rows and close the file. This call blocks, and is used at interpreter exit."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close_now)
            self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    # --- on the writing thread ----------------------------------------------------------------------------------------

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
                log.error("could not write %d rows of the journal, retrying: %s", len(rows), error)  # noqa: TRY400  # no traceback each second
                return
            except Exception:
                log.exception("could not write %d rows of the journal; they are lost", len(rows))
                with self._lost_lock:
                    self.lost += len(rows)
                self._unwritten_rows = []
                return
            self._unwritten_rows = []
            self._last_write_s = time.monotonic()

    def _next_rows(self) -> list[Row]:
        queued = self._queued_rows
        rows = [queued.popleft() for _ in range(min(len(queued), BATCH_ROWS))]
        missing = self.lost - self._reported_lost
        if missing:
            self._reported_lost += missing
            rows.append(self._journal_row("rows lost", "the disk was slower than the application", missing))
        return rows

    def _journal_row(self, outcome: str, reason: str | None = None, count: int = 1) -> Row:
        no_message = (None, None, None, None, None)
        return (self.clock.wall_ms(), "journal", *no_message, outcome, reason, count, None, None, None, None)


class FactoryJournal:
    """Writes the rows for one factory."""

    def __init__(self, journal: Journal, namespace: str, client_id: str, clock: Clock) -> None:
        """Create a writer for a factory; `Journal.attach` does this."""
        self._write = journal.write
        self._flush_soon = journal.flush_soon
        self._namespace = namespace
        self._client_id = client_id
        self._clock = clock

    def on_event(self, event: MessageEvent | PairingEvent) -> None:
        """Write the rows for an event."""
        match event:
            case Sent():
                self._write_sent(event)
            case Settled():
                self._write_settled(event)
            case SendFailed():
                self._write_failed(event)
            case ReceiverOpened():
                # Written at once: if later rows are lost, an audit knows that they may have been about this entity.
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
        """Write one row per message."""
        now_ms, outcome = self._clock.wall_ms(), "scheduled" if event.scheduled_sequence_numbers else "sent"
        namespace, client_id = self._namespace, self._client_id
        reason = None if event.transaction_key is None else f"transaction {event.transaction_key}"
        if event.is_from_spool:
            reason = FROM_SPOOL
        for at, message in enumerate(event.messages):
            number = event.scheduled_sequence_numbers[at] if event.scheduled_sequence_numbers else None
            time_to_live = message.time_to_live
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
                    None if time_to_live is None else duration_ms(time_to_live),
                    None,
                )
            )

    def _write_failed(self, event: SendFailed) -> None:
        """Write one row per message: `failed`, or `unknown` if a namespace may have stored the message."""
        outcome, reason = "unknown" if may_have_happened(event.error) else "failed", _reason_of(event.error)
        for message in event.messages:
            self._write_row(
                "send", event.path, outcome, reason, message_id=message.message_id, session_id=message.session_id
            )

    def _write_settled(self, event: Settled) -> None:
        """Write one row, with the reason if the settlement failed."""
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
        """Write one row for a pairing event; its kind is `send` if the event is the outcome of a send."""
        outcome = event.kind.value
        self._write_row(
            "send" if outcome in _SEND_OUTCOMES else "event",
            event.path,
            outcome,
            event.reason,
            message_id=event.message_id,
            session_id=event.session_id,
            sequence_number=event.sequence_number,
            backlog_queue=event.backlog_queue,
            count=event.count,
            time_to_live_ms=event.time_to_live_ms,
        )

    def _write_row(  # noqa: PLR0913  # one parameter per column
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
        client = (self._namespace, self._client_id)
        message = (message_id, path, session_id, sequence_number, backlog_queue)
        result = (outcome, reason and reason[:MAX_TEXT_LENGTH], count)
        self._write((self._clock.wall_ms(), kind, *message, *result, *client, time_to_live_ms, enqueued_ms))


def _reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
