"""Message ids derived from rows, for `messageIds=deterministic`.

    ids = RowIds("<query id>-<batch id>", ("sourceId",))
    batch_ids = ids.for_batch(batch)
    batch_ids.derive_id(row, content)

An id is `<scope>-<digest>`. The scope is stable across retries: the query and the batch of a stream, or the job of a
batch write. The digest covers the row's key and all content that is sent.

An id must not depend on the position of a row: when a batch is repeated, rows may be missing, in other partitions, or
in another order. If two rows got the same id, the destination would silently drop one row as a duplicate. The digest
includes the content for the same reason: two rows with the same key (a message split into several rows, a key that is
not unique) are two messages. A row whose content changes between two attempts is sent twice, which is better than not
at all.

Owns the choice of key columns, the derivation of ids, and the refusal of rows that would get the same id.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import hashlib
import operator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from twinbus.amqp.codec.encode import encode
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
    """Raise PipelineError if the schema lacks a column of the key. An empty key means the source id."""
    names = schema.names
    if not key and SOURCE_ID not in names:
        raise PipelineError(
            "messageIds=deterministic needs columns that identify a row. If the rows were"
            f' read with format("servicebus"), keep the column {SOURCE_ID}; otherwise name the columns that identify a'
            " row, as messageIdKey=orderId,line; or give each row a messageId and omit the option messageIds."
            " (Earlier versions numbered the rows of a partition: when a batch was repeated with rows missing, other"
            " rows got their numbers and were dropped as duplicates)"
        )
    for name in key or DEFAULT_KEY:
        if name not in names:
            matches = difflib.get_close_matches(name, names, n=1)
            hint = f" (did you mean '{matches[0]}'?)" if matches else ""
            raise PipelineError(
                f"the option messageIdKey names the column {name!r:.60}, which the rows do not have{hint}; they"
                f" have {', '.join(names)}"
            )
        kind = schema.field(name).type
        if not any(is_key_type(kind) for is_key_type in _KEY_TYPES):
            raise PipelineError(
                f"the column '{name}' is {kind}, which cannot identify a row: the columns of messageIdKey must be"
                " string, binary, a whole number, a decimal, a boolean, a date or a timestamp; cast it, or choose"
                " another"
            )


class RowIds:
    """The ids for the rows in one task."""

    def __init__(self, scope: str, key: Sequence[str] = ()) -> None:
        """Create ids that begin with `scope`. `key` are the columns that identify a row (default: the source id)."""
        self.scope = scope
        self.key = tuple(key) or DEFAULT_KEY
        self._digests = bytearray()

    @property
    def digests(self) -> bytes:
        """Digests of all derived ids, for `check_distinct`."""
        return bytes(self._digests)

    def for_batch(self, batch: pa.RecordBatch) -> BatchIds:
        """Return the ids for the next record batch."""
        return BatchIds(self.scope, self.key, batch, self._digests)


class BatchIds:
    """The ids for the rows in one record batch."""

    def __init__(self, scope: str, key: Sequence[str], batch: pa.RecordBatch, digests: bytearray) -> None:
        """Create the ids for one record batch; see `RowIds.for_batch`."""
        self._scope = scope
        self._key = key
        self._columns: list[list[object]] = [batch.column(name).to_pylist() for name in key]
        self._digests = digests
        self._batch_digests: set[bytes] = set()

    def describe_row(self, row: int) -> str:
        """Describe a row by its key, for an error text."""
        return " and ".join(
            [f"{name} {column[row]!s:.140}" for name, column in zip(self._key, self._columns, strict=True)]
        )

    def derive_id(self, row: int, content: Mapping[str, object]) -> str:
        """Derive the id for a row with this content. Raise PipelineError if its key is null, or an equal row exists."""
        values = [column[row] for column in self._columns]
        for name, value in zip(self._key, values, strict=True):
            if value is None:
                raise PipelineError(
                    f"a row has no {name}, from which messageIds=deterministic derives its message id: leave such rows"
                    " out, give them a messageId, or name columns in messageIdKey that are never null"
                )
        digest = compute_digest(zip(self._key, values, strict=True), content.items())
        if digest in self._batch_digests:
            raise _duplicate_rows_error(f"two rows have {self.describe_row(row)}")
        self._batch_digests.add(digest)
        self._digests += digest
        return f"{self._scope}-{digest.hex()}"


def check_distinct(digests: Iterable[bytes]) -> None:
    """Raise PipelineError if two rows in a job or batch have the same id: the destination would keep only one row.

    `BatchIds` already refuses equal rows within a record batch, before anything is sent.
    """
    joined = b"".join(digests)
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), len(joined) // DIGEST_BYTES, [None, pa.py_buffer(joined)]
    )
    if len(array.unique()) == len(array):
        return
    digest = next(entry["values"] for entry in array.value_counts().to_pylist() if entry["counts"] > 1)
    raise _duplicate_rows_error(f"several rows have the message id that ends in {digest.hex()}")


def _duplicate_rows_error(description: str) -> PipelineError:
    return PipelineError(
        f"{description}, and the same content: a destination that detects duplicates keeps only one of them. "
        "Name columns in"
        " messageIdKey that distinguish the rows (if one message became several rows: messageIdKey=sourceId,pos with"
        " the pos of posexplode), or give each row a messageId"
    )


def compute_digest(key: Iterable[tuple[str, object]], content: Iterable[tuple[str, object]]) -> bytes:
    """Digest names and values, each with its length, so that different rows have different encodings."""
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
    """Encode a value with its kind, independent of its Arrow or Spark type."""
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
    """Encode the digits of a decimal, the same for 1.5 and 1.50. `normalize` would round to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Spark has neither infinite decimals nor NaN"
    text = "".join(map(str, digits))
    significant = text.rstrip("0")
    return f"{sign}:{significant}:{exponent + len(text) - len(significant)}".encode() if significant else b"0"
