"""The spool: a folder on the local disk that stores messages while both namespaces are down.

    spool = Spool(folder, max_bytes=1 << 30)
    await spool.open()
    await spool.append(record)      # on disk when this returns

Owns: adding, reading and removing records, and the size limit. All disk I/O runs on one thread, so that the event loop
never blocks; records that arrive while the disk is busy are written together, with one fsync. `spool_sender` decides
when records are sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from twinbus.client.pairing.errors import SpoolFailed, SpoolFull
from twinbus.client.pairing.spool.files import SEGMENT_BYTES, SpoolFiles, segment_number_of
from twinbus.client.pairing.spool.index import SpoolIndex
from twinbus.client.pairing.spool.record import encode_record, frame_size
from twinbus.client.retry import ignore_failure
from twinbus.model.callbacks import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twinbus.client.pairing.spool.index import EntityQueue
    from twinbus.client.pairing.spool.record import SpoolRecord

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
ArgumentTypes = TypeVarTuple("ArgumentTypes")
DEFAULT_MAX_BYTES: Final = 1 << 30
_MIN_SEGMENTS: Final = 8
"""The minimum number of segments of a small spool, so that removed records free disk space early."""
_MIN_SEGMENT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """The current contents of a spool."""

    count: int
    """The number of messages; each message of a batch counts."""
    bytes: int
    """The size on disk. A file is deleted when all its records are removed."""
    oldest_ms: int | None
    """The time when the oldest message was spooled; None if the spool is empty."""
    refused: int = 0
    """The number of messages in the folder `refused`, which their destination will never accept as they are. These
    messages are not included in `count`, and their size `refused_bytes` is not included in `bytes`."""
    refused_bytes: int = 0


class _PendingAppend:
    """A record that is not on disk yet."""

    __slots__ = ("content", "outcome", "record")

    def __init__(self, record: SpoolRecord, content: bytes, outcome: asyncio.Future[None]) -> None:
        self.record = record
        self.content = content
        self.outcome = outcome


class Spool:
    """A spool folder that is used by one pairing."""

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Create a spool without any I/O; `open` locks and reads the folder."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.on_added: Callable[[EntityQueue], None] = ignore
        """Called with an entity's queue when a record was spooled for that entity."""
        self._files = SpoolFiles(folder, min(SEGMENT_BYTES, max(_MIN_SEGMENT_BYTES, max_bytes // _MIN_SEGMENTS)))
        self._index = SpoolIndex()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="twinbus-spool")
        self._pending_appends: deque[_PendingAppend] = deque()
        self._pending_removals: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pending_bytes = 0
        """The size of appends that are not on disk yet."""
        self._commit_task: asyncio.Task[None] | None = None
        self._first_new_segment = 0
        self._unawaited_positions: set[int] = set()
        """Positions of records whose senders stopped waiting before the records were on disk."""
        self._is_open = False

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock the folder and read its records. Raise SpoolFailed if the folder is in use or cannot be read."""
        try:
            await self._on_thread(self._files.open, self._on_found)
        except BaseException:
            # After a cancellation the thread may still be opening the files, so the same thread closes them afterwards.
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._files.close)
            closing.add_done_callback(ignore_failure)
            self._thread.shutdown(wait=False)
            raise
        self._first_new_segment = self._files.next_number
        self._is_open = True

    def _on_found(self, position: int, record: SpoolRecord) -> None:
        """Add a record to the index, on the spool's thread; the index is not used elsewhere before `open` returns."""
        self._add_to_index(position, record)

    async def close(self) -> None:
        """Finish pending writes and release the folder. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        if self._commit_task is not None:
            await self._commit_task
        try:
            await self._on_thread(self._files.close)
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._files.close()
        self._thread.shutdown(wait=False)

    # --- contents -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SpoolStatus:
        """The current contents of the spool."""
        files = self._files
        return SpoolStatus(
            count=self._index.messages,
            bytes=files.bytes,
            oldest_ms=self._index.oldest_ms,
            refused=files.refused.messages,
            refused_bytes=files.refused.bytes,
        )

    @property
    def is_empty(self) -> bool:
        """Whether the spool has no records."""
        return not self._index.entity_queues

    @property
    def entity_queues(self) -> Sequence[EntityQueue]:
        """The spooled records by entity."""
        return list(self._index.entity_queues.values())

    def holds_sessions(self, path: str, session_ids: Sequence[str]) -> bool:
        """Return whether records for one of these sessions are spooled, so that later messages must be spooled, too."""
        return bool(session_ids) and self._index.holds_sessions(path, session_ids)

    def is_possible_duplicate(self, position: int) -> bool:
        """Return whether a message may be sent twice for a reason that its record does not have.

        Either the message was in the spool when the spool was opened, and an earlier process may have sent it; or its
        sender stopped waiting before the record was on disk, and may send the message again.
        """
        return segment_number_of(position) < self._first_new_segment or position in self._unawaited_positions

    # --- records ------------------------------------------------------------------------------------------------------

    async def append(self, record: SpoolRecord) -> None:
        """Store a record.

        The record is on disk when this call returns. Raise SpoolFull or SpoolFailed if the record is not stored.
        """
        self._check_open()
        content = encode_record(record)
        size = frame_size(content)
        held = self._files.bytes + self._pending_bytes
        if held + size > self.max_bytes:
            raise SpoolFull(
                f"the spool {self.folder} is full: it holds {held:,} of {self.max_bytes:,} bytes, and the message has"
                f" {size:,}; raise spool_max_bytes"
            )
        append = _PendingAppend(record, content, asyncio.get_running_loop().create_future())
        self._pending_appends.append(append)
        self._pending_bytes += size
        self._commit_soon()
        await append.outcome

    async def read(self, position: int) -> SpoolRecord:
        """Read a record of this spool."""
        self._check_open()
        return await self._on_thread(self._files.read, position)

    async def remove(self, position: int, record: SpoolRecord) -> None:
        """Remove a record, so that it is not sent again, not even after a restart."""
        self._check_open()
        done = asyncio.get_running_loop().create_future()
        self._pending_removals.append((position, done))
        self._commit_soon()
        await done
        self._unawaited_positions.discard(position)
        self._index.remove(position, record.path, record.session_ids, messages=len(record.message_ids))

    async def refuse(self, position: int, record: SpoolRecord, reason: str) -> Path:
        """Move a record, with the reason, to the folder `refused`, and return its file."""
        self._check_open()
        file = await self._on_thread(self._files.refuse, position, record, reason)
        await self.remove(position, record)
        return file

    async def count_refused(self) -> None:
        """Count the messages in the folder `refused`, because files may have been removed by hand."""
        self._check_open()
        await self._on_thread(self._files.count_refused)

    async def requeue_refused(self, path: str | None = None) -> int:
        """Requeue refused messages, or only one entity's, and return their number.

        The messages go behind all pending records. A file that cannot be read stays in `refused`.
        """
        self._check_open()
        count = 0
        for position, record in await self._on_thread(self._files.requeue_refused, path):
            count += len(record.message_ids)
            self.on_added(self._add_to_index(position, record))
        return count

    # --- internals ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise SpoolFailed(f"the spool in {self.folder} is closed")

    def _add_to_index(self, position: int, record: SpoolRecord) -> EntityQueue:
        return self._index.add(
            position,
            record.path,
            record.session_ids,
            messages=len(record.message_ids),
            spooled_at_ms=record.spooled_at_ms,
        )

    def _commit_soon(self) -> None:
        if self._commit_task is None:
            self._commit_task = asyncio.ensure_future(self._commit())

    async def _commit(self) -> None:
        """Write all pending appends and removals, including those that arrive in the meantime."""
        while self._pending_appends or self._pending_removals:
            appends, removals = list(self._pending_appends), list(self._pending_removals)
            self._pending_appends.clear()
            self._pending_removals.clear()
            wanted = [append for append in appends if not append.outcome.cancelled()]
            contents, removed = [append.content for append in wanted], [position for position, _ in removals]
            try:
                outcomes = await self._on_thread(self._write, contents, removed)
            except Exception as error:  # a bug in twinbus must not make the callers wait forever
                log.exception("the spool in %s failed", self.folder)
                outcomes = [OSError(str(error))] * len(wanted)
            self._pending_bytes -= sum(frame_size(append.content) for append in appends)
            for append, outcome in zip(wanted, outcomes, strict=True):
                self._finish_append(append, outcome)
            for _, done in removals:
                if not done.cancelled():
                    done.set_result(None)
        self._commit_task = None

    def _write(self, contents: Sequence[bytes], removed: Sequence[int]) -> list[int | OSError]:
        """Write appends and removals, on the spool's thread."""
        outcomes = self._files.append(contents)
        self._files.mark_done(removed)
        return outcomes

    def _finish_append(self, append: _PendingAppend, outcome: int | OSError) -> None:
        is_awaited = not append.outcome.cancelled()
        if isinstance(outcome, OSError):
            if is_awaited:
                append.outcome.set_exception(
                    SpoolFailed(f"the message could not be stored in {self.folder}: {outcome}")
                )
            return
        queue = self._add_to_index(outcome, append.record)
        if is_awaited:
            append.outcome.set_result(None)
        else:
            self._unawaited_positions.add(outcome)
        self.on_added(queue)

    async def _on_thread(self, function: Callable[[*ArgumentTypes], T], *arguments: *ArgumentTypes) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
