"""The files of a spool. Records are appended to the last segment, and a segment without pending records is deleted.

Owns: the data on disk, and recovery after a crash or a disk error. All calls are made on the spool's own thread, one at
a time, and block until the disk has responded. Knows nothing of the order in which records are sent.

After a failed fsync, it is unknown which bytes of the segment are on disk. New records therefore go to a new segment.
After a restart, new records go to a new segment, too: earlier segments are read, repaired and deleted, never extended.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.client.pairing.errors import SpoolFailed
from twinbus.client.pairing.spool.folder import (
    SEGMENT_SUFFIX,
    SpoolFolder,
    create_file,
    sync_folder,
    write_at,
    write_file_atomically,
)
from twinbus.client.pairing.spool.record import (
    DONE_MARK_BYTES,
    FILE_HEADER,
    FRAME_HEAD_BYTES,
    DamagedBytes,
    FoundRecord,
    SpoolRecord,
    encode_done_mark,
    encode_frame,
    encode_record,
    frame_size_of_head,
    read_done_marks,
    read_frame,
    scan,
)
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

log: Final = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 * 1024 * 1024
_OFFSET_BITS: Final = 40
_OFFSET: Final = (1 << _OFFSET_BITS) - 1


def segment_number_of(position: int) -> int:
    """Return the number of a record's segment."""
    return position >> _OFFSET_BITS


def _refused_file_stem(position: int) -> str:
    """Return a refused record's file name without suffix; the name contains the position."""
    return f"{segment_number_of(position):08d}-{position & _OFFSET:010d}"


@dataclass(slots=True)
class Segment:
    """A file of records."""

    number: int
    size: int
    pending: int = 0
    """The number of records that are not removed."""
    done_mark_count: int = 0
    """The number of marks in the segment's `.done` file, which has a mark for each removed record."""
    descriptor: int | None = None
    """The file descriptor while the segment is written; None when it is sealed."""

    def position(self, offset: int) -> int:
        """Return the position of the record at `offset`; positions of later segments are larger."""
        return self.number << _OFFSET_BITS | offset

    def seal(self) -> None:
        """Close the file, so that the segment is not written any more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class RefusedCount(NamedTuple):
    """The number and size of messages in the folder `refused`."""

    messages: int = 0
    """Each message of a batch counts; a file that cannot be read counts as one message."""
    bytes: int = 0


class SpoolFiles:
    """The files of one spool folder."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Create the object without any I/O; `open` reads the folder."""
        self._folder_path = folder
        self._segment_bytes = segment_bytes
        self._segments: dict[int, Segment] = {}
        self._active: Segment | None = None
        self._folder: SpoolFolder | None = None
        self.bytes = 0
        """The total size of all segments."""
        self.refused = RefusedCount()
        self.next_number = 1

    @property
    def folder(self) -> SpoolFolder:
        """The folder; the spool must be open."""
        assert self._folder is not None, "the spool is not open"
        return self._folder

    # --- opening and closing ------------------------------------------------------------------------------------------

    def open(self, on_found: Callable[[int, SpoolRecord], None]) -> None:
        """Lock the folder, and call `on_found` with every pending record, in order. Raise SpoolFailed on failure."""
        try:
            self._folder = SpoolFolder(self._folder_path)
            try:
                on_pending = self._dropping_refused_copies(on_found)
                for number in self._folder.segment_numbers():
                    self._load_segment(number, on_pending)
                self.next_number = self._folder.free_number()
                self.count_refused()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise SpoolFailed(f"{self._folder_path} cannot be used as a spool: {error}") from error

    def _dropping_refused_copies(
        self, on_found: Callable[[int, SpoolRecord], None]
    ) -> Callable[[int, SpoolRecord], None]:
        """Return a callback that deletes the copy in `refused` of a record that is still pending.

        A crash interrupted the refusal of such a record, so the record is sent, and refused, again.
        """
        refused = {file.stem: file for file in self._refused_files()}
        if not refused:
            return on_found

        def once(position: int, record: SpoolRecord) -> None:
            copy = refused.get(_refused_file_stem(position))
            if copy is not None:
                copy.unlink(missing_ok=True)
                copy.with_suffix(".txt").unlink(missing_ok=True)
            on_found(position, record)

        return once

    def close(self) -> None:
        """Close the files and release the folder to its next owner."""
        if self._active is not None:
            self._active.seal()
            self._active = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _load_segment(self, number: int, on_found: Callable[[int, SpoolRecord], None]) -> None:
        file = self.folder.segment_path(number)
        data, marks = file.read_bytes(), self._read_done_file(number)
        removed = read_done_marks(marks)
        segment = self._segments[number] = Segment(number, len(data), done_mark_count=len(marks) // DONE_MARK_BYTES)
        for part in scan(data, str(file)):
            if isinstance(part, FoundRecord):
                if part.offset not in removed:
                    segment.pending += 1
                    on_found(segment.position(part.offset), part.record)
            elif part.is_torn:
                self._truncate_torn(segment, part)
            elif part.offset not in removed:
                self._save_damaged(segment, part, data)
        self.bytes += segment.size
        if not segment.pending:
            self._delete(segment)

    def _read_done_file(self, number: int) -> bytes:
        try:
            return self.folder.done_path(number).read_bytes()
        except FileNotFoundError:
            return b""

    def _truncate_torn(self, segment: Segment, damage: DamagedBytes) -> None:
        file = self.folder.segment_path(segment.number)
        log.warning("%s: removing the last %d bytes, an incomplete record", file, damage.end - damage.offset)
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, damage.offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        segment.size = damage.offset

    def _save_damaged(self, segment: Segment, damage: DamagedBytes, data: bytes) -> None:
        """Save damaged bytes in a file for inspection, and log them once."""
        saved = self.folder.damaged / f"{segment.number:08d}-{damage.offset:010d}.part"
        write_file_atomically(saved, data[damage.offset : damage.end])
        log.critical(
            "%s is damaged: %d bytes at offset %d are not a valid record and may have contained messages: saved as %s",
            self.folder.segment_path(segment.number),
            damage.end - damage.offset,
            damage.offset,
            saved,
        )
        self._write_done_marks(segment, [damage.offset])

    # --- adding -------------------------------------------------------------------------------------------------------

    def append(self, contents: Sequence[bytes]) -> list[int | OSError]:
        """Write records with one fsync; return each record's position, or the error if it was not stored."""
        if not contents:
            return []
        try:
            segment, descriptor = self._writable_segment()
        except OSError as error:
            return [error] * len(contents)
        start = segment.size
        outcomes = [self._write(segment, descriptor, content) for content in contents]
        try:
            os.fsync(descriptor)
        except OSError as error:
            self._abandon_segment(segment, start)
            return [error] * len(contents)
        segment.pending += sum(isinstance(outcome, int) for outcome in outcomes)
        self.bytes += segment.size - start
        if not segment.pending:
            self._delete_empty(segment)
        elif segment.size >= self._segment_bytes:
            segment.seal()
            self._active = None
        return outcomes

    def _writable_segment(self) -> tuple[Segment, int]:
        """Return the segment that is open for writing; create one if necessary."""
        if self._active is not None and self._active.descriptor is not None:
            return self._active, self._active.descriptor
        number = self.next_number
        self.next_number += 1
        file = self.folder.segment_path(number)
        segment = Segment(number, len(FILE_HEADER))
        try:
            segment.descriptor = create_file(file)
            write_at(segment.descriptor, FILE_HEADER, 0)
        except OSError:
            segment.seal()
            file.unlink(missing_ok=True)
            raise
        self._active = self._segments[number] = segment
        self.bytes += segment.size
        return segment, segment.descriptor

    def _write(self, segment: Segment, descriptor: int, content: bytes) -> int | OSError:
        """Write one record; if that fails, remove the part that was written."""
        offset = segment.size
        frame = encode_frame(content, offset)
        try:
            write_at(descriptor, frame, offset)
        except OSError as error:
            # If truncating fails too, the next record overwrites the partial frame, or the next start removes it.
            _truncate(descriptor, offset)
            return error
        segment.size += len(frame)
        return segment.position(offset)

    def _abandon_segment(self, segment: Segment, start: int) -> None:
        """Stop writing to a segment after a failed fsync.

        The state of the file on disk is unknown, and a second fsync could report success without having written the
        data.
        """
        log.error("fsync of %s failed: the file is not written any more", self.folder.segment_path(segment.number))
        assert segment.descriptor is not None
        _truncate(segment.descriptor, start)
        segment.size = start
        segment.seal()
        self._active = None
        if not segment.pending:
            self._delete_empty(segment)

    def _delete_empty(self, segment: Segment) -> None:
        """Delete a segment that never had a record; an empty file that remains does no harm."""
        with contextlib.suppress(OSError):
            self._delete(segment)

    # --- removing -----------------------------------------------------------------------------------------------------

    def read(self, position: int) -> SpoolRecord:
        """Read a pending record."""
        number, offset = segment_number_of(position), position & _OFFSET
        file = self.folder.segment_path(number)
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = frame_size_of_head(os.pread(descriptor, FRAME_HEAD_BYTES, offset))
            frame = read_frame(os.pread(descriptor, size, offset), 0, offset)
        finally:
            os.close(descriptor)
        if frame is None:
            raise SpoolFailed(f"{file} is damaged: the record at offset {offset} cannot be read")
        return frame[0]

    def mark_done(self, positions: Iterable[int]) -> None:
        """Mark records as removed.

        If the disk fails, log a warning, because the messages may be sent again after a restart.
        """
        offsets: dict[int, list[int]] = {}
        for position in positions:
            offsets.setdefault(segment_number_of(position), []).append(position & _OFFSET)
        for number, removed in offsets.items():
            segment = self._segments[number]
            segment.pending -= len(removed)
            try:
                if segment.pending:
                    self._write_done_marks(segment, removed)
                else:
                    self._delete(segment)
            except OSError as error:
                log.warning(
                    "%s: %d messages could not be marked as sent, and may be sent again after a restart: %s",
                    self.folder.segment_path(number),
                    len(removed),
                    error,
                )

    def refuse(self, position: int, record: SpoolRecord, reason: str) -> Path:
        """Write a record to a file in `refused`, with a text file that has the reason. The record stays pending."""
        file = self.folder.refused / f"{_refused_file_stem(position)}{SEGMENT_SUFFIX}"
        content = FILE_HEADER + encode_frame(encode_record(record), len(FILE_HEADER))
        write_file_atomically(file, content)
        write_file_atomically(file.with_suffix(".txt"), reason.encode())
        self.refused = RefusedCount(self.refused.messages + len(record.message_ids), self.refused.bytes + len(content))
        return file

    def count_refused(self) -> None:
        """Count the messages in the folder `refused`."""
        messages = size = 0
        for file in self._refused_files():
            with contextlib.suppress(FileNotFoundError):  # the file was removed in the meantime
                size += file.stat().st_size
                record = self._read_refused(file)
                messages += 1 if record is None else len(record.message_ids)
        self.refused = RefusedCount(messages, size)

    def requeue_refused(self, path: str | None) -> list[tuple[int, SpoolRecord]]:
        """Turn files in `refused`, or only one entity's, into segments; return positions and records.

        A file is renamed, so that its message is in exactly one place even if this process is killed. Raise SpoolFailed
        if no file could be moved.
        """
        requeued: list[tuple[int, SpoolRecord]] = []
        try:
            for file in self._refused_files():
                record = self._read_refused(file)
                if record is not None and (path is None or canonical_key(record.path) == canonical_key(path)):
                    requeued.append((self._adopt_refused(file), record))
            sync_folder(self.folder.path)
            sync_folder(self.folder.refused)
            self.count_refused()
        except OSError as error:
            if not requeued:
                raise SpoolFailed(f"{self.folder.refused}: no message could be requeued: {error}") from error
            log.error("%s: not all messages could be requeued: %s", self.folder.refused, error)  # noqa: TRY400
        return requeued

    def _adopt_refused(self, file: Path) -> int:
        """Turn a file with one record into a segment, and return the record's position."""
        segment = Segment(self.next_number, file.stat().st_size, pending=1)
        self.next_number += 1
        file.rename(self.folder.segment_path(segment.number))
        self._segments[segment.number] = segment
        self.bytes += segment.size
        with contextlib.suppress(OSError):
            file.with_suffix(".txt").unlink(missing_ok=True)
        return segment.position(len(FILE_HEADER))

    def _refused_files(self) -> list[Path]:
        """Return the files of refused messages, in the order of their positions."""
        return sorted(self.folder.refused.glob(f"*{SEGMENT_SUFFIX}"))

    def _read_refused(self, file: Path) -> SpoolRecord | None:
        """Return the only record of a file; None if the file has no record, or has other bytes as well."""
        data = file.read_bytes()
        frame = read_frame(data, len(FILE_HEADER), len(FILE_HEADER)) if data.startswith(FILE_HEADER) else None
        return frame[0] if frame is not None and frame[1] == len(data) else None

    def _write_done_marks(self, segment: Segment, offsets: Iterable[int]) -> None:
        file = self.folder.done_path(segment.number)
        marks = b"".join(map(encode_done_mark, offsets))
        descriptor = (
            os.open(file, os.O_WRONLY | os.O_CLOEXEC) if segment.done_mark_count or file.exists() else create_file(file)
        )
        try:
            # At the computed offset, not at the end of the file, which may have a partial mark.
            write_at(descriptor, marks, segment.done_mark_count * DONE_MARK_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        segment.done_mark_count += len(marks) // DONE_MARK_BYTES

    def _delete(self, segment: Segment) -> None:
        """Delete a segment.

        Its marks are deleted last, because all its records would be sent again without the marks.
        """
        segment.seal()
        if self._active is segment:
            self._active = None
        del self._segments[segment.number]
        self.bytes -= segment.size
        self.folder.segment_path(segment.number).unlink(missing_ok=True)
        sync_folder(self.folder.path)
        self.folder.done_path(segment.number).unlink(missing_ok=True)


def _truncate(descriptor: int, size: int) -> None:
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        log.warning("an incomplete record could not be removed: %s", error)
