"""The spool: where messages go when both namespaces are down. A folder on the local disk, and what is known of it.

    spool = Spool(folder, max_bytes=1 << 30)
    await spool.open()
    await spool.append(record)      # on disk when this returns

Owns: the way of a record in and out, and that no more is on disk than was allowed. All disk work is done on one thread,
so the loop never waits for it; what arrives while the disk is busy is written together, with one fsync. Who sends what
is here, and when, is the affair of `unspooling`.
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
"""A small spool has at least so many: what has gone makes room early."""
_MIN_SEGMENT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """What is in a spool now."""

    count: int
    """Messages; those of a batch count each."""
    bytes: int
    """On disk. A file goes when all that is in it has gone."""
    oldest_ms: int | None
    """When the oldest was spooled; None if there is nothing."""
    refused: int = 0
    """Messages in the folder `refused`: their destination will never accept them as they are. They are in addition to
    `count`, and so are `refused_bytes` to `bytes`."""
    refused_bytes: int = 0


class _PendingAppend:
    """A record that waits for the disk."""

    __slots__ = ("content", "outcome", "record")

    def __init__(self, record: SpoolRecord, content: bytes, outcome: asyncio.Future[None]) -> None:
        self.record = record
        self.content = content
        self.outcome = outcome


class Spool:
    """One folder, in use by one pairing."""

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """`open` takes the folder."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.on_added: Callable[[EntityQueue], None] = ignore
        """Called when something was spooled for an entity."""
        self._files = SpoolFiles(folder, min(SEGMENT_BYTES, max(_MIN_SEGMENT_BYTES, max_bytes // _MIN_SEGMENTS)))
        self._index = SpoolIndex()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="twinbus-spool")
        self._pending_appends: deque[_PendingAppend] = deque()
        self._pending_removals: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pending_bytes = 0
        """Of appends that are not on disk."""
        self._commit_task: asyncio.Task[None] | None = None
        self._first_new_segment = 0
        self._unawaited_positions: set[int] = set()
        """Positions of records whose senders gave up before they were on disk."""
        self._is_open = False

    # --- from start to end --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the folder, and find what is there. SpoolFailed if somebody else has it, or it cannot be used."""
        try:
            await self._on_thread(self._files.open, self._on_found)
        except BaseException:
            # It may still be opening, if nobody waits for it any more: it is closed after that, in order.
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._files.close)
            closing.add_done_callback(ignore_failure)
            self._thread.shutdown(wait=False)
            raise
        self._first_new_segment = self._files.next_number
        self._is_open = True

    def _on_found(self, position: int, record: SpoolRecord) -> None:
        """On the thread; nobody else uses the index before it is open."""
        self._add_to_index(position, record)

    async def close(self) -> None:
        """What is being written is written; then somebody else may have the folder. May be called again."""
        if not self._is_open:
            return
        self._is_open = False
        if self._commit_task is not None:
            await self._commit_task
        try:
            await self._on_thread(self._files.close)
        except RuntimeError:  # the process ends: there are no threads any more
            self._files.close()
        self._thread.shutdown(wait=False)

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SpoolStatus:
        """How much is there."""
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
        """Nothing is there."""
        return not self._index.entity_queues

    @property
    def entity_queues(self) -> Sequence[EntityQueue]:
        """What there is, by entity."""
        return list(self._index.entity_queues.values())

    def holds_sessions(self, path: str, session_ids: Sequence[str]) -> bool:
        """Whether something for one of these sessions of an entity is here: what comes later must go behind it."""
        return bool(session_ids) and self._index.holds_sessions(path, session_ids)

    def is_possible_duplicate(self, position: int) -> bool:
        """Whether a message may be sent elsewhere, too, whatever its record says.

        It was here when the spool was opened, and an earlier process may have sent it; or its sender gave up before it
        was on disk, and may send it again.
        """
        return segment_number_of(position) < self._first_new_segment or position in self._unawaited_positions

    # --- in and out ---------------------------------------------------------------------------------------------------

    async def append(self, record: SpoolRecord) -> None:
        """Keep a record: it is on disk when this returns. SpoolFull or SpoolFailed if it is not here."""
        self._check_open()
        content = encode_record(record)
        size = frame_size(content)
        held = self._files.bytes + self._pending_bytes
        if held + size > self.max_bytes:
            raise SpoolFull(
                f"{self.folder} holds {held:,} bytes, and may hold {self.max_bytes:,} (spool_max_bytes): the message of"
                f" {size:,} is not there"
            )
        append = _PendingAppend(record, content, asyncio.get_running_loop().create_future())
        self._pending_appends.append(append)
        self._pending_bytes += size
        self._commit_soon()
        await append.outcome

    async def read(self, position: int) -> SpoolRecord:
        """A record that is here."""
        self._check_open()
        return await self._on_thread(self._files.read, position)

    async def remove(self, position: int, record: SpoolRecord) -> None:
        """It has gone, and nothing will bring it back when this returns."""
        self._check_open()
        noted = asyncio.get_running_loop().create_future()
        self._pending_removals.append((position, noted))
        self._commit_soon()
        await noted
        self._unawaited_positions.discard(position)
        self._index.remove(position, record.path, record.session_ids, messages=len(record.message_ids))

    async def refuse(self, position: int, record: SpoolRecord, reason: str) -> Path:
        """Put it aside, with the reason, where somebody can look at it: the file it is in now."""
        self._check_open()
        file = await self._on_thread(self._files.refuse, position, record, reason)
        await self.remove(position, record)
        return file

    async def count_refused(self) -> None:
        """Count what is in the folder `refused` now: somebody may have removed files by hand."""
        self._check_open()
        await self._on_thread(self._files.count_refused)

    async def requeue_refused(self, path: str | None = None) -> int:
        """Take messages that were refused back into the spool, all or those for one entity: how many there are.

        They are behind everything that waits now. A file that cannot be read stays where it is.
        """
        self._check_open()
        taken = 0
        for position, record in await self._on_thread(self._files.requeue_refused, path):
            taken += len(record.message_ids)
            self.on_added(self._add_to_index(position, record))
        return taken

    # --- inside -------------------------------------------------------------------------------------------------------

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
        """Write what waits, and what came meanwhile, until nothing does."""
        while self._pending_appends or self._pending_removals:
            appends, removals = list(self._pending_appends), list(self._pending_removals)
            self._pending_appends.clear()
            self._pending_removals.clear()
            wanted = [append for append in appends if not append.outcome.cancelled()]
            contents, gone = [append.content for append in wanted], [position for position, _ in removals]
            try:
                outcomes = await self._on_thread(self._write, contents, gone)
            except Exception as error:  # a fault of ours: it must not leave anybody waiting
                log.exception("the spool in %s failed", self.folder)
                outcomes = [OSError(str(error))] * len(wanted)
            self._pending_bytes -= sum(frame_size(append.content) for append in appends)
            for append, outcome in zip(wanted, outcomes, strict=True):
                self._finish_append(append, outcome)
            for _, noted in removals:
                if not noted.cancelled():
                    noted.set_result(None)
        self._commit_task = None

    def _write(self, contents: Sequence[bytes], removed: Sequence[int]) -> list[int | OSError]:
        """On the thread."""
        outcomes = self._files.append(contents)
        self._files.mark_done(removed)
        return outcomes

    def _finish_append(self, append: _PendingAppend, outcome: int | OSError) -> None:
        is_awaited = not append.outcome.cancelled()
        if isinstance(outcome, OSError):
            if is_awaited:
                append.outcome.set_exception(SpoolFailed(f"{self.folder} did not take the message: {outcome}"))
            return
        pile = self._add_to_index(outcome, append.record)
        if is_awaited:
            append.outcome.set_result(None)
        else:
            self._unawaited_positions.add(outcome)
        self.on_added(pile)

    async def _on_thread(self, function: Callable[[*ArgumentTypes], T], *arguments: *ArgumentTypes) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
