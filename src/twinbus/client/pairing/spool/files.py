"""The files of a spool: records are appended to the last segment, and a segment goes when all of its records have.

Owns: what is on disk, and what a crash or a sick disk can leave there. Every call is made on the spool's own thread,
one at a time, and may take as long as the disk does. Which record goes next is not known here.

A segment is never written to again once an fsync of it failed, or its writer has ended: what the disk holds of it then
is only known by reading it.
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
    """The segment that a record is in."""
    return position >> _OFFSET_BITS


def _refused_file_stem(position: int) -> str:
    """Name the file of a refused record after its position."""
    return f"{segment_number_of(position):08d}-{position & _OFFSET:010d}"


@dataclass(slots=True)
class Segment:
    """One file of records."""

    number: int
    size: int
    pending: int = 0
    """Records that have not gone."""
    done_mark_count: int = 0
    """Of those that have, in the file beside it."""
    descriptor: int | None = None
    """While it is written to."""

    def position(self, offset: int) -> int:
        """A number for a record in it; those of later segments are larger."""
        return self.number << _OFFSET_BITS | offset

    def seal(self) -> None:
        """It is not written to any more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class RefusedCount(NamedTuple):
    """What is in the folder `refused`."""

    messages: int = 0
    """Those of a batch count each; a file that cannot be read counts as one."""
    bytes: int = 0


class SpoolFiles:
    """All of one folder."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """`open` reads what is there."""
        self._folder_path = folder
        self._segment_bytes = segment_bytes
        self._segments: dict[int, Segment] = {}
        self._active: Segment | None = None
        self._folder: SpoolFolder | None = None
        self.bytes = 0
        """Of all segments."""
        self.refused = RefusedCount()
        self.next_number = 1

    @property
    def folder(self) -> SpoolFolder:
        """It is open."""
        assert self._folder is not None, "the spool is not open"
        return self._folder

    # --- from start to end --------------------------------------------------------------------------------------------

    def open(self, on_found: Callable[[int, SpoolRecord], None]) -> None:
        """Take the folder, and tell every record that has not gone, in order. SpoolFailed if that cannot be."""
        try:
            self._folder = SpoolFolder(self._folder_path)
            try:
                once = self._dropping_refused_copies(on_found)
                for number in self._folder.segment_numbers():
                    self._load_segment(number, once)
                self.next_number = self._folder.free_number()
                self.count_refused()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise SpoolFailed(f"{self._folder_path} cannot be the folder of a spool: {error}") from error

    def _dropping_refused_copies(
        self, on_found: Callable[[int, SpoolRecord], None]
    ) -> Callable[[int, SpoolRecord], None]:
        """Forget the copy in `refused` of a record that has not gone: its refusal was cut off, and comes again."""
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
        """Leave it to the next owner."""
        if self._active is not None:
            self._active.seal()
            self._active = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _load_segment(self, number: int, on_found: Callable[[int, SpoolRecord], None]) -> None:
        file = self.folder.segment_path(number)
        data, marks = file.read_bytes(), self._read_done_file(number)
        gone = read_done_marks(marks)
        segment = self._segments[number] = Segment(number, len(data), done_mark_count=len(marks) // DONE_MARK_BYTES)
        for part in scan(data, str(file)):
            if isinstance(part, FoundRecord):
                if part.offset not in gone:
                    segment.pending += 1
                    on_found(segment.position(part.offset), part.record)
            elif part.is_torn:
                self._truncate_torn(segment, part)
            elif part.offset not in gone:
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
        log.warning("%s: the last %d bytes were never written out: cut off", file, damage.end - damage.offset)
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, damage.offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        segment.size = damage.offset

    def _save_damaged(self, segment: Segment, damage: DamagedBytes, data: bytes) -> None:
        """Keep what cannot be read where somebody can look at it, and say so, once."""
        kept = self.folder.damaged / f"{segment.number:08d}-{damage.offset:010d}.part"
        write_file_atomically(kept, data[damage.offset : damage.end])
        log.critical(
            "%s is damaged: %d bytes from %d on are no record, and there may have been messages in them: kept as %s",
            self.folder.segment_path(segment.number),
            damage.end - damage.offset,
            damage.offset,
            kept,
        )
        self._write_done_marks(segment, [damage.offset])

    # --- in -----------------------------------------------------------------------------------------------------------

    def append(self, contents: Sequence[bytes]) -> list[int | OSError]:
        """Write records, all with one fsync; the position of each, or why it is not there."""
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
        """The segment that is written to."""
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
        """Write one; what it began to write of one that does not fit is taken away again."""
        offset = segment.size
        frame = encode_frame(content, offset)
        try:
            write_at(descriptor, frame, offset)
        except OSError as error:
            # Should this fail, too, the next record goes over it, or it is found at the next start.
            _truncate(descriptor, offset)
            return error
        segment.size += len(frame)
        return segment.position(offset)

    def _abandon_segment(self, segment: Segment, start: int) -> None:
        """An fsync failed: nobody knows what the disk has of it, and asking again would only be told "all is well"."""
        log.error("%s could not be synced: it is not written to any more", self.folder.segment_path(segment.number))
        assert segment.descriptor is not None
        _truncate(segment.descriptor, start)
        segment.size = start
        segment.seal()
        self._active = None
        if not segment.pending:
            self._delete_empty(segment)

    def _delete_empty(self, segment: Segment) -> None:
        """Nothing was ever in it; where it stays, it is no harm."""
        with contextlib.suppress(OSError):
            self._delete(segment)

    # --- out ----------------------------------------------------------------------------------------------------------

    def read(self, position: int) -> SpoolRecord:
        """A record that has not gone."""
        number, offset = segment_number_of(position), position & _OFFSET
        file = self.folder.segment_path(number)
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = frame_size_of_head(os.pread(descriptor, FRAME_HEAD_BYTES, offset))
            found = read_frame(os.pread(descriptor, size, offset), 0, offset)
        finally:
            os.close(descriptor)
        if found is None:
            raise SpoolFailed(f"{file} is damaged: there is no record at {offset} any more")
        return found[0]

    def mark_done(self, positions: Iterable[int]) -> None:
        """These have gone. Where the disk does not take that, it is said, and they may go twice."""
        offsets: dict[int, list[int]] = {}
        for position in positions:
            offsets.setdefault(segment_number_of(position), []).append(position & _OFFSET)
        for number, gone in offsets.items():
            segment = self._segments[number]
            segment.pending -= len(gone)
            try:
                if segment.pending:
                    self._write_done_marks(segment, gone)
                else:
                    self._delete(segment)
            except OSError as error:
                log.warning(
                    "%s: it could not be noted that %d messages were sent: after a restart they may be sent again: %s",
                    self.folder.segment_path(number),
                    len(gone),
                    error,
                )

    def refuse(self, position: int, record: SpoolRecord, reason: str) -> Path:
        """Keep a record that nobody takes in a file of its own, beside the reason. It has not gone by that."""
        file = self.folder.refused / f"{_refused_file_stem(position)}{SEGMENT_SUFFIX}"
        content = FILE_HEADER + encode_frame(encode_record(record), len(FILE_HEADER))
        write_file_atomically(file, content)
        write_file_atomically(file.with_suffix(".txt"), reason.encode())
        self.refused = RefusedCount(self.refused.messages + len(record.message_ids), self.refused.bytes + len(content))
        return file

    def count_refused(self) -> None:
        """Count what is in the folder `refused`."""
        messages = size = 0
        for file in self._refused_files():
            with contextlib.suppress(FileNotFoundError):  # somebody removes it now
                size += file.stat().st_size
                record = self._read_refused(file)
                messages += 1 if record is None else len(record.message_ids)
        self.refused = RefusedCount(messages, size)

    def requeue_refused(self, path: str | None) -> list[tuple[int, SpoolRecord]]:
        """Make segments of the files in `refused`, or of those for one entity: each record, with its position.

        A file is renamed, so that its message is in one place or the other, whenever this process is killed.
        SpoolFailed if the disk allows none of them to be moved.
        """
        taken: list[tuple[int, SpoolRecord]] = []
        try:
            for file in self._refused_files():
                record = self._read_refused(file)
                if record is not None and (path is None or canonical_key(record.path) == canonical_key(path)):
                    taken.append((self._adopt_refused(file), record))
            sync_folder(self.folder.path)
            sync_folder(self.folder.refused)
            self.count_refused()
        except OSError as error:
            if not taken:
                raise SpoolFailed(f"{self.folder.refused}: no message could be taken back: {error}") from error
            log.error("%s: not all messages could be taken back: %s", self.folder.refused, error)  # noqa: TRY400
        return taken

    def _adopt_refused(self, file: Path) -> int:
        """Make a segment of a file with one record; the position of that."""
        segment = Segment(self.next_number, file.stat().st_size, pending=1)
        self.next_number += 1
        file.rename(self.folder.segment_path(segment.number))
        self._segments[segment.number] = segment
        self.bytes += segment.size
        with contextlib.suppress(OSError):
            file.with_suffix(".txt").unlink(missing_ok=True)
        return segment.position(len(FILE_HEADER))

    def _refused_files(self) -> list[Path]:
        """Return the files of refused messages, the first that was refused first."""
        return sorted(self.folder.refused.glob(f"*{SEGMENT_SUFFIX}"))

    def _read_refused(self, file: Path) -> SpoolRecord | None:
        """Return the record in a file of one; None if there is none, or something else beside it."""
        data = file.read_bytes()
        found = read_frame(data, len(FILE_HEADER), len(FILE_HEADER)) if data.startswith(FILE_HEADER) else None
        return found[0] if found is not None and found[1] == len(data) else None

    def _write_done_marks(self, segment: Segment, offsets: Iterable[int]) -> None:
        file = self.folder.done_path(segment.number)
        marks = b"".join(map(encode_done_mark, offsets))
        descriptor = (
            os.open(file, os.O_WRONLY | os.O_CLOEXEC) if segment.done_mark_count or file.exists() else create_file(file)
        )
        try:
            # At its place, not at the end: there may be a piece of a mark.
            write_at(descriptor, marks, segment.done_mark_count * DONE_MARK_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        segment.done_mark_count += len(marks) // DONE_MARK_BYTES

    def _delete(self, segment: Segment) -> None:
        """Nothing in it is wanted any more. The marks go last: without them all would be sent again."""
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
        log.warning("a piece of a record that was not written whole stays behind: %s", error)
