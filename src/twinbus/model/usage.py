"""Usage of a namespace, as metered by its servers: one row per minute, process, entity and client.

    for head, row in read_journal(Path("data/usage/0-5f1c-2025063014.journal")):
        print(row.entity, operations(row))

Owns the columns, the charges of the two billing models, the paths of files, and the frames of a journal. A server
appends one frame per minute to the journal of the hour. At the end of the hour, `server.usage` converts the rows to a
Parquet file, which replaces the journal. The current minute is in a second file, the partial minute, to which a frame
is appended about once per second, so a killed process loses at most the usage of the last second.
docs/pipeline-metering.md says how operations are counted.
"""

from __future__ import annotations

import datetime as dt
import zlib
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# --- columns ----------------------------------------------------------------------------------------------------------

KEYS: Final = ("minute", "namespace", "process", "life", "entity", "client", "mark")
COUNTS: Final = (
    "sends",
    "send_units",
    "send_bytes",
    "failed_sends",
    "pings",
    "failed_pings",
    "receives",
    "receive_units",
    "receive_bytes",
    "empty_receives",
    "settlements",
    "renewals",
    "session_calls",
    "peeks",
    "schedules",
    "management",
    "forwards",
    "connections",
)
COLUMNS: Final = (*KEYS, *COUNTS)

UNIT_BYTES: Final = 65_536
"""Billing unit: an operation on a message is charged once per started unit of this size."""
NO_ENTITY: Final = ""
"""Value of `entity` for operations on the namespace itself, and of `client` for operations that no client requested."""
OTHER_ENTITY: Final = "(other)"
"""Value of `entity` and `client` in the row that sums up all usage beyond `ROWS_MAX` rows per minute and process."""
ROWS_MAX: Final = 10_000

BEGIN: Final = "begin"
"""Mark of the minute in which a process started."""
END: Final = "end"
"""Mark of the minute in which a process stopped cleanly, after counting all its usage. If the last row of a process run
(its life) has no such mark, the process is still running or was killed. A kill loses the usage of the last second; a
power cut loses the usage of the last minute."""
LOST: Final = "lost"
"""Mark of the first minute after a time in which rows could not be written."""


class UsageRow(msgspec.Struct, array_like=True, frozen=True):
    """Usage of one entity by one client in one minute; the journal's head names the namespace and the process.

    Each minute has a row without entity and client, which counts connections and shows that the minute was metered.
    """

    minute: int
    """Start of the minute, in seconds since 1970."""
    entity: str = NO_ENTITY
    """Path as the entity's owner spells it, including the suffix of a dead-letter queue."""
    client: str = NO_ENTITY
    mark: str = ""
    """Mark (`BEGIN`, `END`, `LOST`) of a row without entity and client."""
    sends: int = 0
    """Accepted messages, counting each message in a batch."""
    send_units: int = 0
    """Accepted messages in billing units."""
    send_bytes: int = 0
    """Bytes of accepted messages as received, including pings."""
    failed_sends: int = 0
    """Refused sends; a refused batch counts once."""
    pings: int = 0
    """Pings that the entity accepted."""
    failed_pings: int = 0
    """Pings that were refused."""
    receives: int = 0
    """Delivered messages, counting each delivery."""
    receive_units: int = 0
    """Delivered messages in billing units."""
    receive_bytes: int = 0
    """Bytes of delivered messages as sent to the client."""
    empty_receives: int = 0
    """Receive calls that returned no message."""
    settlements: int = 0
    """Messages that a call completed, abandoned, deferred or dead-lettered."""
    renewals: int = 0
    """Renewed message and session locks."""
    session_calls: int = 0
    """Session states read or written, in billing units, and listings of sessions."""
    peeks: int = 0
    """Peeked pages, and messages sent on browse links, in billing units."""
    schedules: int = 0
    """Scheduled messages, in billing units, and cancelled messages."""
    management: int = 0
    """Calls on entities and rules, over HTTP or AMQP."""
    forwards: int = 0
    """Messages forwarded from the entity."""
    connections: int = 0
    """Peak number of AMQP connections in the minute, in the row without entity and client; 0 in other rows."""


# --- charges ----------------------------------------------------------------------------------------------------------

FAILED_TERMS: Final = ("failed_sends", "failed_pings")
"""Columns for failed operations; Azure does not publish whether it charges for them."""
DOCUMENT_TERMS: Final = ("send_units", "receive_units", "empty_receives", "pings")
"""Columns summed in the document model, which charges only sends, receives and pings."""
OPERATION_TERMS: Final = (
    *DOCUMENT_TERMS,
    "settlements",
    "renewals",
    "session_calls",
    "peeks",
    "schedules",
    "management",
    "forwards",
)
"""Columns summed in the operation model, which charges every call."""


def operations(row: UsageRow, *, bills_failed: bool = True) -> int:
    """Return the charge for a row in the operation model."""
    return _sum(row, OPERATION_TERMS, bills_failed=bills_failed)


def document_operations(row: UsageRow, *, bills_failed: bool = True) -> int:
    """Return the charge for a row in the document model."""
    return _sum(row, DOCUMENT_TERMS, bills_failed=bills_failed)


def _sum(row: UsageRow, terms: tuple[str, ...], *, bills_failed: bool) -> int:
    charged = (*terms, *FAILED_TERMS) if bills_failed else terms
    return sum([getattr(row, name) for name in charged])


def units_of(size: int) -> int:
    """Return the number of billing units for `size` bytes: one per started 64 KB, at least one."""
    return max(1, -(-size // UNIT_BYTES))


def add_rows(rows: Iterable[UsageRow], *, entity: str = OTHER_ENTITY, client: str = OTHER_ENTITY) -> UsageRow:
    """Return the sum of rows for the same minute; `rows` must not be empty."""
    row_list = list(rows)
    sums = {name: sum([getattr(row, name) for row in row_list]) for name in COUNTS}
    return UsageRow(minute=row_list[0].minute, entity=entity, client=client, **sums)


# --- file paths -------------------------------------------------------------------------------------------------------

VERSION: Final = 1
"""Version of the columns and frames."""
HOUR_S: Final = 3_600
MINUTE_S: Final = 60
JOURNAL_SUFFIX: Final = ".journal"
PARTIAL_SUFFIX: Final = ".partial"
PARQUET_SUFFIX: Final = ".parquet"


class JournalHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """First frame of a journal: the values that all of its rows have in common."""

    version: int = VERSION
    namespace: str
    process: int
    life: str
    """Identifier of one run of a process; a restarted process gets a new identifier."""
    hour: int
    """Start of the hour that contains all rows, in seconds since 1970."""

    @property
    def journal_name(self) -> str:
        """Name of the journal's file in the folder `usage`."""
        return f"{self.process}-{self.life}-{_datetime_at(self.hour):%Y%m%d%H}{JOURNAL_SUFFIX}"

    @property
    def parquet_path(self) -> Path:
        """Path, in the same folder, of the Parquet file that replaces the journal.

        If the Parquet file exists, ignore the journal.
        """
        when = _datetime_at(self.hour)
        name = f"{when:%H}-{self.process}-{self.life}{PARQUET_SUFFIX}"
        return Path(f"namespace={self.namespace}", f"date={when:%Y-%m-%d}", name)


def _datetime_at(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


# --- the journal ------------------------------------------------------------------------------------------------------

_FRAME: Final = Struct("<II")
"""Frame header: length and CRC-32 of the content."""
_FRAME_MAX_BYTES: Final = 2**26
_HEAD_COLUMNS: Final = ("namespace", "process", "life")


class PartialMinuteHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """First frame of a partial minute: the position in the journal that its rows continue."""

    version: int = VERSION
    after: int
    """Length of the journal in bytes. If the journal is longer, it has the whole minute, and the partial minute is
    obsolete."""


class JournalUnreadable(Exception):
    """The file is not a journal that this version can read. The message gives the reason."""


def write_frame(content: JournalHead | PartialMinuteHead | list[UsageRow]) -> bytes:
    """Encode a frame, to be appended in one write."""
    encoded = msgspec.msgpack.encode(content)
    return _FRAME.pack(len(encoded), zlib.crc32(encoded)) + encoded


def read_head(path: Path) -> JournalHead:
    """Return the head of a journal. Raise JournalUnreadable if the head is invalid or incomplete."""
    return _read_journal_head(path, _read_frames(path))


def read_journal(path: Path) -> Iterator[tuple[JournalHead, UsageRow]]:
    """Yield the rows of a journal and its partial minute, up to the first torn frame. Raises JournalUnreadable."""
    for head, rows in _read_rows(path):
        for row in rows:
            yield head, row


def columns_of(path: Path) -> dict[str, list[Any]]:
    """Return all rows of a journal as one list per column of `COLUMNS`; minutes are seconds since 1970."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for head, rows in _read_rows(path):  # one frame at a time, because a busy hour has 600,000 rows
        for name, column in columns.items():
            column.extend([getattr(head if name in _HEAD_COLUMNS else row, name) for row in rows])
    return columns


def complete_bytes(path: Path) -> int:
    """Return the length of a journal up to its last complete frame."""
    return sum([_FRAME.size + len(content) for content in _read_frames(path)])


def journals_without_parquet(folder: Path) -> list[Path]:
    """Return the journals in a folder `usage` whose rows are not in a Parquet file yet, sorted by name.

    Unreadable journals are skipped: their first frame is incomplete, so they have no rows. A server may convert a
    journal after this call. A caller that reads both kinds of files must read these journals first, and then skip the
    Parquet files that replace them.
    """
    journals = []
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        try:
            head = read_head(path)
        except (JournalUnreadable, FileNotFoundError):
            continue
        if not (folder / head.parquet_path).exists():
            journals.append(path)
    return journals


def partial_minute_path(journal: Path) -> Path:
    """Return the path of a journal's partial minute."""
    return journal.with_suffix(PARTIAL_SUFFIX)


def _read_rows(path: Path) -> Iterator[tuple[JournalHead, list[UsageRow]]]:
    # Read the partial minute first. If the server writes the whole minute meanwhile, the journal is longer than the
    # partial minute says, so the partial minute is ignored and its rows are not counted twice. No rows are missed
    # either, because a journal is removed before its partial minute.
    after, partial = _read_partial_minute(partial_minute_path(path))
    frames = _read_frames(path)
    head = _read_journal_head(path, frames)
    length = len(write_frame(head))
    for content in frames:
        length += _FRAME.size + len(content)
        yield head, _decode_rows(content)
    if partial and length <= after:
        yield head, partial


def _read_partial_minute(path: Path) -> tuple[int, list[UsageRow]]:
    """Return the journal's length before a partial minute, and the minute's rows merged by entity, client and mark."""
    try:
        first, *frames = list(_read_frames(path))
        head = msgspec.msgpack.decode(first, type=PartialMinuteHead)
    except (FileNotFoundError, ValueError, msgspec.MsgspecError):  # no file, or no complete head after a kill
        return 0, []
    if head.version != VERSION:
        return 0, []
    grouped: dict[tuple[int, str, str, str], list[UsageRow]] = {}
    for row in [row for content in frames for row in _decode_rows(content)]:
        grouped.setdefault((row.minute, row.entity, row.client, row.mark), []).append(row)
    return head.after, [_merge_rows(rows) for rows in grouped.values()]


def _merge_rows(rows: list[UsageRow]) -> UsageRow:
    """Merge rows for the same minute, entity and client. Connections are a peak value, so they are not added."""
    if len(rows) == 1:
        return rows[0]
    added = add_rows(rows, entity=rows[0].entity, client=rows[0].client)
    return msgspec.structs.replace(added, mark=rows[0].mark, connections=max(row.connections for row in rows))


def _decode_rows(content: bytes) -> list[UsageRow]:
    return msgspec.msgpack.decode(content, type=list[UsageRow])


def _read_journal_head(path: Path, frames: Iterator[bytes]) -> JournalHead:
    first = next(frames, None)
    if first is None:
        raise JournalUnreadable(f"{path} is incomplete: its first frame is missing or torn")
    try:
        head = msgspec.msgpack.decode(first, type=JournalHead)
    except msgspec.MsgspecError as error:
        raise JournalUnreadable(f"{path} is not a usage journal: {error}") from None
    if head.version != VERSION:
        raise JournalUnreadable(f"{path} has version {head.version}; this twinbus reads {VERSION}: use a newer twinbus")
    return head


def _read_frames(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while True:
            prefix = file.read(_FRAME.size)
            if len(prefix) < _FRAME.size:
                return
            length, checksum = _FRAME.unpack(prefix)
            if length > _FRAME_MAX_BYTES:
                return
            content = file.read(length)
            if len(content) < length or zlib.crc32(content) != checksum:
                return
            yield content
