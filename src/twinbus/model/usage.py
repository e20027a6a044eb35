"""Usage: what was asked of a namespace, as its servers count it: a row for each minute, process, entity and client.

    for head, row in read_journal(Path("data/usage/0-5f1c-2025063014.journal")):
        print(row.entity, operations(row))

Owns: the columns, what of them is charged in each of the two models, where the files lie, and the frames of a journal.
A server appends one frame a minute to the journal of the hour; when that is over, its rows become a Parquet file
(`server.metering`), which takes the journal's place. The minute that is not over yet is in a second file, the partial
minute, to which a frame is appended about once a second: that is all a kill can lose. docs/pipeline-metering.md says
what is counted as what.
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
"""An operation on a message is charged once for each so many bytes, begun ones too."""
NO_ENTITY: Final = ""
"""The entity, where something was asked of the namespace itself; the client, where nobody asked."""
OTHER_ENTITY: Final = "(other)"
"""Entity and client of what has no row for itself: a minute of a process has `ROWS_MAX` at most."""
ROWS_MAX: Final = 10_000

BEGIN: Final = "begin"
"""Marks: a life begins with this minute."""
END: Final = "end"
"""It ends well with this minute, and everything is counted. A life whose last row is no such mark was killed, and its
last second is lost, or with a power cut its last minute; or it is still alive."""
LOST: Final = "lost"
"""Rows between the one before and this minute could not be written."""


class UsageRow(msgspec.Struct, array_like=True, frozen=True):
    """What was counted in one minute for one entity and client; its journal says in which namespace and process.

    Each minute has a row with neither, which tells of the connections: that is how it is known to have been counted.
    """

    minute: int
    """Its beginning: seconds since 1970."""
    entity: str = NO_ENTITY
    """Path, as its owner writes it, with that of a dead-letter queue where it was one."""
    client: str = NO_ENTITY
    mark: str = ""
    """Of a row with neither entity nor client."""
    sends: int = 0
    """Messages that were accepted, each of a batch."""
    send_units: int = 0
    """... by their size."""
    send_bytes: int = 0
    """... as they came, those of pings too."""
    failed_sends: int = 0
    """Messages, or whole batches, that were refused."""
    pings: int = 0
    """Messages that only asked whether the entity takes any, and were told yes."""
    failed_pings: int = 0
    """... or no."""
    receives: int = 0
    """Messages that were delivered, each as often as it was."""
    receive_units: int = 0
    """... by their size."""
    receive_bytes: int = 0
    """... as they left."""
    empty_receives: int = 0
    """Waits for a message that ended without one."""
    settlements: int = 0
    """Messages that were completed, abandoned, deferred or dead-lettered by a call."""
    renewals: int = 0
    """Locks of messages and sessions."""
    session_calls: int = 0
    """States of sessions that were read or written, by their size; lists of sessions."""
    peeks: int = 0
    """Pages that were peeked, and messages that a browse link was shown, by their size."""
    schedules: int = 0
    """Messages that were scheduled, by their size, or cancelled."""
    management: int = 0
    """Calls about entities and rules, over HTTP or AMQP."""
    forwards: int = 0
    """Messages that were forwarded from it."""
    connections: int = 0
    """The most there were at a time in this minute; of AMQP, in the row with neither entity nor client."""


# --- what is charged --------------------------------------------------------------------------------------------------

FAILED_TERMS: Final = ("failed_sends", "failed_pings")
"""Whether these are charged is not published."""
DOCUMENT_TERMS: Final = ("send_units", "receive_units", "empty_receives", "pings")
"""The document's model: sends and receives alone. Each column is summed."""
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
"""The operation model: every call."""


def operations(row: UsageRow, *, bills_failed: bool = True) -> int:
    """What a row is charged in the operation model."""
    return _sum(row, OPERATION_TERMS, bills_failed=bills_failed)


def document_operations(row: UsageRow, *, bills_failed: bool = True) -> int:
    """... and in that of the document."""
    return _sum(row, DOCUMENT_TERMS, bills_failed=bills_failed)


def _sum(row: UsageRow, terms: tuple[str, ...], *, bills_failed: bool) -> int:
    charged = (*terms, *FAILED_TERMS) if bills_failed else terms
    return sum([getattr(row, name) for name in charged])


def units_of(size: int) -> int:
    """How often an operation on so many bytes is charged: once for each 64 KB begun."""
    return max(1, -(-size // UNIT_BYTES))


def add_rows(rows: Iterable[UsageRow], *, entity: str = OTHER_ENTITY, client: str = OTHER_ENTITY) -> UsageRow:
    """Several of one minute, at least one, as one."""
    some = list(rows)
    sums = {name: sum([getattr(row, name) for row in some]) for name in COUNTS}
    return UsageRow(minute=some[0].minute, entity=entity, client=client, **sums)


# --- where files are --------------------------------------------------------------------------------------------------

VERSION: Final = 1
"""Of columns and frames."""
HOUR_S: Final = 3_600
MINUTE_S: Final = 60
JOURNAL_SUFFIX: Final = ".journal"
PARTIAL_SUFFIX: Final = ".partial"
PARQUET_SUFFIX: Final = ".parquet"


class JournalHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Whose a journal is: what all of its rows have in common. Its first frame."""

    version: int = VERSION
    namespace: str
    process: int
    life: str
    """Another one for each start of a process."""
    hour: int
    """Its beginning, in which all of its minutes are: seconds since 1970."""

    @property
    def journal_name(self) -> str:
        """Of its file in the folder `usage`."""
        return f"{self.process}-{self.life}-{_datetime_at(self.hour):%Y%m%d%H}{JOURNAL_SUFFIX}"

    @property
    def parquet_path(self) -> Path:
        """Of the Parquet file that takes its place, in the same folder: once that is there, the journal is no more."""
        when = _datetime_at(self.hour)
        name = f"{when:%H}-{self.process}-{self.life}{PARQUET_SUFFIX}"
        return Path(f"namespace={self.namespace}", f"date={when:%Y-%m-%d}", name)


def _datetime_at(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


# --- the journal ------------------------------------------------------------------------------------------------------

_FRAME: Final = Struct("<II")
"""How long its content is, and its CRC-32."""
_FRAME_MAX_BYTES: Final = 2**26
_HEAD_COLUMNS: Final = ("namespace", "process", "life")


class PartialMinuteHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The first frame of a partial minute: which part of the journal the rows behind it continue."""

    version: int = VERSION
    after: int
    """Length of the journal, in bytes. A journal that is longer has the whole minute, and the partial one is void."""


class JournalUnreadable(Exception):
    """A file is no journal that this version can read. The message says why."""


def write_frame(content: JournalHead | PartialMinuteHead | list[UsageRow]) -> bytes:
    """Encode one frame, which is appended in one write."""
    encoded = msgspec.msgpack.encode(content)
    return _FRAME.pack(len(encoded), zlib.crc32(encoded)) + encoded


def read_head(path: Path) -> JournalHead:
    """Whose it is. JournalUnreadable also for one that ended before it said so."""
    return _read_journal_head(path, _read_frames(path))


def read_journal(path: Path) -> Iterator[tuple[JournalHead, UsageRow]]:
    """Rows of a journal and of its partial minute; nothing behind a frame that is torn. JournalUnreadable."""
    for head, rows in _read_rows(path):
        for row in rows:
            yield head, row


def columns_of(path: Path) -> dict[str, list[Any]]:
    """All rows of a journal as one list for each of `COLUMNS`; minutes are numbers, seconds since 1970."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for head, rows in _read_rows(path):  # a frame at a time: a busy hour has 600,000 rows
        for name, column in columns.items():
            column.extend([getattr(head if name in _HEAD_COLUMNS else row, name) for row in rows])
    return columns


def complete_bytes(path: Path) -> int:
    """How long a journal is, without what was not written to its end."""
    return sum([_FRAME.size + len(content) for content in _read_frames(path)])


def journals_without_parquet(folder: Path) -> list[Path]:
    """The journals in a folder `usage` whose rows are in no Parquet file yet, in the order of their names.

    One that cannot be read is left out: its first frame was not written to its end, and it has no rows. A server may
    roll one after this has looked: who reads both kinds reads these first, and leaves out the Parquet files of those.
    """
    found = []
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        try:
            head = read_head(path)
        except (JournalUnreadable, FileNotFoundError):
            continue
        if not (folder / head.parquet_path).exists():
            found.append(path)
    return found


def partial_minute_path(journal: Path) -> Path:
    """Where the minute that a journal does not have yet lies."""
    return journal.with_suffix(PARTIAL_SUFFIX)


def _read_rows(path: Path) -> Iterator[tuple[JournalHead, list[UsageRow]]]:
    # The partial minute is read first: if its server writes the whole minute meanwhile, the journal is longer than the
    # partial minute says, and the rows are not counted twice. Nor are they missed: a journal is removed before it.
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
    """Rows of a partial minute, one for each minute, entity and client, and the length of the journal before them."""
    try:
        first, *frames = list(_read_frames(path))
        head = msgspec.msgpack.decode(first, type=PartialMinuteHead)
    except (FileNotFoundError, ValueError, msgspec.MsgspecError):  # there is none, or a kill left nothing whole of it
        return 0, []
    if head.version != VERSION:
        return 0, []
    found: dict[tuple[int, str, str, str], list[UsageRow]] = {}
    for row in [row for content in frames for row in _decode_rows(content)]:
        found.setdefault((row.minute, row.entity, row.client, row.mark), []).append(row)
    return head.after, [_merge_rows(rows) for rows in found.values()]


def _merge_rows(rows: list[UsageRow]) -> UsageRow:
    """Several of the same minute, entity and client as one. Connections are a peak: they do not add up."""
    if len(rows) == 1:
        return rows[0]
    added = add_rows(rows, entity=rows[0].entity, client=rows[0].client)
    return msgspec.structs.replace(added, mark=rows[0].mark, connections=max(row.connections for row in rows))


def _decode_rows(content: bytes) -> list[UsageRow]:
    return msgspec.msgpack.decode(content, type=list[UsageRow])


def _read_journal_head(path: Path, frames: Iterator[bytes]) -> JournalHead:
    first = next(frames, None)
    if first is None:
        raise JournalUnreadable(f"{path} ends before it says whose it is")
    try:
        head = msgspec.msgpack.decode(first, type=JournalHead)
    except msgspec.MsgspecError as error:
        raise JournalUnreadable(f"{path} is no journal of usage: {error}") from None
    if head.version != VERSION:
        raise JournalUnreadable(f"{path} is of version {head.version}; this twinbus reads {VERSION}: use a newer one")
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
