"""Message ids derived from rows, for `messageIds=deterministic`.

    ids = RowIds("<query id>-<batch id>", ("sourceId",))
    of_batch = ids.start(batch)
    of_batch.id_of(row, content)

An id is `<scope>-<digest>`. The scope is what Spark keeps over a retry: the query and the batch of a stream, or the job
of a batch write. The digest is of the row's key and of everything in the row that is sent.

Nothing in an id depends on where a row stands: when a batch runs again, rows may be missing, or be in other partitions
and in another order, and an id that was used for one row must never be given to another. The destination would drop
the other row as a duplicate, and nobody would notice. That is also why the content is part of the digest: if two rows
have one key (a message that was split into several rows, a key that is not unique after all), they are two messages. A
row whose content changes between two attempts is sent twice: rather twice than never.

Owns: which columns can be a key, how ids are derived, and the refusal of rows that would have one id.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import hashlib
import operator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from twinbus.amqp.encode import encode
from twinbus.model.times import EPOCH
from twinbus.pipeline.columns import SOURCE_ID
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DIGEST_BYTES: Final = 16
DEFAULT_KEY: Final = (SOURCE_ID,)
"""The key of rows that were read with this data source."""
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_PAIR_NAME: Final = operator.itemgetter(0)
_KEY_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise PipelineError where rows of this schema have no such key. An empty key stands for the source id."""
    names = schema.names
    if not key and SOURCE_ID not in names:
        raise PipelineError(
            "messageIds=deterministic needs to know what identifies a row, and these rows do not say it. If they were"
            f' read with format("servicebus"), keep the column {SOURCE_ID}; otherwise name the columns that identify a'
            " row, as messageIdKey=orderId,line; or give each row a messageId, and leave the option messageIds out."
            " (Earlier versions numbered the rows of a partition: when a batch ran again with rows missing, other rows"
            " got the numbers of these and were dropped as duplicates)"
        )
    for name in key or DEFAULT_KEY:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            raise PipelineError(
                f"the option messageIdKey names the column {name!r:.60}, and the rows have no such column{hint}; they"
                f" have {', '.join(names)}"
            )
        kind = schema.field(name).type
        if not any(is_one(kind) for is_one in _KEY_TYPES):
            raise PipelineError(
                f"the column '{name}' is {kind}, which cannot identify a row: a column that messageIdKey names is a"
                " string, binary, a whole number, a decimal, a boolean, a date or a timestamp; cast it, or choose"
                " another"
            )


class RowIds:
    """The ids of the rows of one task."""

    def __init__(self, scope: str, key: Sequence[str] = ()) -> None:
        """`scope` is what all ids begin with, `key` the columns that identify a row (default: the source id)."""
        self.scope = scope
        self.key = tuple(key) or DEFAULT_KEY
        self._digests = bytearray()

    @property
    def digests(self) -> bytes:
        """Of all ids that were given, for `check_distinct`."""
        return bytes(self._digests)

    def for_batch(self, batch: pa.RecordBatch) -> BatchIds:
        """Begin with the next rows."""
        return BatchIds(self.scope, self.key, batch, self._digests)


class BatchIds:
    """The ids of the rows of one record batch."""

    def __init__(self, scope: str, key: Sequence[str], batch: pa.RecordBatch, digests: bytearray) -> None:
        """`RowIds.start` makes one."""
        self._scope = scope
        self._key = key
        self._columns: list[list[object]] = [batch.column(name).to_pylist() for name in key]
        self._digests = digests
        self._batch_digests: set[bytes] = set()

    def describe_row(self, row: int) -> str:
        """What a row is called in errors: its key."""
        return " and ".join(
            [f"{name} {column[row]!s:.140}" for name, column in zip(self._key, self._columns, strict=True)]
        )

    def derive_id(self, row: int, content: Mapping[str, object]) -> str:
        """Derive the id of a row with this content. PipelineError if its key is null, or it is equal to another row."""
        values = [column[row] for column in self._columns]
        for name, value in zip(self._key, values, strict=True):
            if value is None:
                raise PipelineError(
                    f"a row has no {name}, which messageIds=deterministic derives its message id from: leave such rows"
                    " out, give them a messageId, or name columns in messageIdKey that are never null"
                )
        digest = compute_digest(zip(self._key, values, strict=True), content.items())
        if digest in self._batch_digests:
            raise _duplicate_rows_error(f"two rows have {self.describe_row(row)}")
        self._batch_digests.add(digest)
        self._digests += digest
        return f"{self._scope}-{digest.hex()}"


def check_distinct(digests: Iterable[bytes]) -> None:
    """Raise PipelineError if any two rows of a job, or of a batch, were given one id: the destination has one of them.

    Within a record batch `BatchIds` notices this before anything is sent.
    """
    joined = b"".join(digests)
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), len(joined) // DIGEST_BYTES, [None, pa.py_buffer(joined)]
    )
    if len(array.unique()) == len(array):
        return
    found = next(one["values"] for one in array.value_counts().to_pylist() if one["counts"] > 1)
    raise _duplicate_rows_error(f"several rows have the message id that ends in {found.hex()}")


def _duplicate_rows_error(description: str) -> PipelineError:
    return PipelineError(
        f"{description}, and the same content: a destination that detects duplicates keeps one of them only. "
        "Name columns in"
        " messageIdKey that tell rows apart (if one message became several rows: messageIdKey=sourceId,pos with the"
        " pos of posexplode), or give each row a messageId"
    )


def compute_digest(key: Iterable[tuple[str, object]], content: Iterable[tuple[str, object]]) -> bytes:
    """Digest names and values, each with its length, so that no two lists of them are written alike."""
    parts: list[bytes] = []
    _append_pairs(parts, key)
    parts.append(b"")
    _append_pairs(parts, content)
    framed = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    return hashlib.blake2b(framed, digest_size=DIGEST_BYTES).digest()


def _append_pairs(parts: list[bytes], pairs: Iterable[tuple[str, object]]) -> None:
    for name, value in sorted([pair for pair in pairs if pair[1] is not None], key=_PAIR_NAME):
        if isinstance(value, dict):
            parts.append(b"%b{%d" % (name.encode(), len(value)))
            for inner in sorted(value):
                parts += (inner.encode(), encode(value[inner]))
        else:
            parts += (name.encode(), _encode_value(value))


def _encode_value(value: object) -> bytes:
    """Of a value: its type and what it is, whatever Arrow or Spark call its type."""
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, decimal.Decimal):
        return b"c" + _encode_decimal(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return b"m%d" % ((value - EPOCH) // _MICROSECOND)
    if isinstance(value, dt.date):
        return b"d" + value.isoformat().encode()
    assert isinstance(value, int)
    return b"i%d" % value


def _encode_decimal(value: decimal.Decimal) -> bytes:
    """A number's digits, the same for 1.5 and 1.50. Not by `normalize`, which rounds to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Spark has neither infinite decimals nor NaN"
    text = "".join(map(str, digits))
    short = text.rstrip("0")
    return f"{sign}:{short}:{exponent + len(text) - len(short)}".encode() if short else b"0"
