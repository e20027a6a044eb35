"""What is in entities now: every message of a place, active, locked, deferred or scheduled, without its body.

Owns: the look. It is a peek, page by page, in tasks of Spark, one for each place: nothing is changed, and nobody is
kept from anything. A fragment that does not answer makes the look of its place incomplete, which is an error, as is a
place that is not there: a row says so. A parked message is seen as what it was before.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.amqp.errors import AmqpError
from twinbus.amqp.types import Int
from twinbus.client import MessagingFactory
from twinbus.client.journal_file import text_of
from twinbus.model.annotations import PATH, SESSION_ID
from twinbus.model.errors import ServiceBusError
from twinbus.model.message import BrokeredMessage
from twinbus.model.path import key_of
from twinbus.pipeline.spark import make_known

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from twinbus.client.settings import ClientOptions

NAME: Final = "twinbus-places"
PAGE: Final = 1_000
TIMEOUT_S: Final = 60.0
_PEEK: Final = "com.microsoft:peek-message"
_MOMENT: Final = pa.timestamp("us", tz="UTC")
COLUMNS: Final = pa.schema(
    [
        pa.field("place", pa.string()),
        pa.field("entity", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("enqueued", _MOMENT),
        pa.field("error", pa.string()),
    ]
)
SCHEMA: Final = (
    "place string, entity string, message_id string, session_id string, number bigint, state string,"
    " enqueued timestamp, error string"
)


@dataclass(frozen=True, slots=True)
class Access:
    """How a namespace is reached."""

    connection_string: str
    ca_files: tuple[str, ...] = ()
    """Authorities that its certificate may be of, beside this machine's."""

    def __repr__(self) -> str:
        """Without the key."""
        return "Access(...)"

    def options(self) -> ClientOptions:
        """What a client is told beside the string."""
        context = ssl.create_default_context()
        for file in self.ca_files:
            context.load_verify_locations(file)
        return {"tls": context, "operation_timeout": TIMEOUT_S}

    def factory(self) -> MessagingFactory:
        """A way there."""
        return MessagingFactory.from_connection_string(self.connection_string, **self.options())


def nothing(spark: SparkSession) -> DataFrame:
    """What is where nobody looked."""
    return spark.createDataFrame([], SCHEMA)


def look(spark: SparkSession, access: Access, places: Sequence[str]) -> DataFrame:
    """All that is at these places, now: it is not looked again, whatever is made of it."""
    if not places:
        return nothing(spark)
    make_known(spark, PlacesDataSource)
    told = {"places": list(places), "connectionString": access.connection_string, "caFiles": access.ca_files}
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}
    return spark.read.format(NAME).options(**options).load().localCheckpoint(eager=True)


class PlacesDataSource(DataSource):
    """The data source behind `look`."""

    @classmethod
    def name(cls) -> str:
        """What Spark knows it by."""
        return NAME

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> PlacesReader:  # noqa: ARG002
        """For all places."""
        access = Access(self.options["connectionString"], tuple(json.loads(self.options["caFiles"])))
        return PlacesReader(access, json.loads(self.options["places"]))


@dataclass
class One(InputPartition):
    """A place that a task looks at."""

    path: str


class PlacesReader(DataSourceReader):
    """Looks in tasks: of each place no more than a page is in memory."""

    def __init__(self, access: Access, places: Sequence[str]) -> None:
        """All are in one namespace."""
        self._access = access
        self._places = places

    def partitions(self) -> list[InputPartition]:
        """One for each."""
        return [One(path) for path in self._places]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What is there."""
        assert isinstance(partition, One)
        return read_place(self._access, partition.path)


def read_place(access: Access, path: str) -> Iterator[pa.RecordBatch]:
    """One place, a page at a time."""
    loop = asyncio.new_event_loop()
    pages = _pages(access, path)
    try:
        while True:
            try:
                page = loop.run_until_complete(anext(pages))
            except StopAsyncIteration:
                return
            except (ServiceBusError, AmqpError, OSError) as error:
                yield _failed(path, f"{type(error).__name__}: {error}")
                return
            yield page
    finally:
        loop.run_until_complete(pages.aclose())  # type: ignore[attr-defined]  # it is a generator
        loop.close()


async def _pages(access: Access, path: str) -> AsyncIterator[pa.RecordBatch]:
    start = 1
    async with access.factory() as factory:
        while True:
            ask = partial(factory.ask, path, _PEEK, _wish(start), timeout_s=TIMEOUT_S)
            answer = await factory.run(f"a look at '{path}'", ask, timeout_s=None)
            silent = answer.body.get("twinbus:unavailable-fragments")
            if silent:
                yield _failed(path, f"fragments {silent} do not answer")
                return
            found = answer.body.get("messages")
            entries = found if isinstance(found, list) else []
            messages = [BrokeredMessage.decode(bytes(one["message"]), is_peeked=True) for one in entries]
            if not messages:
                return
            start = messages[-1].sequence_number + 1
            yield _page(path, messages)


def _wish(start: int) -> dict[str, object]:
    return {"from-sequence-number": start, "message-count": Int(PAGE), "omit-message-body": True}


def _page(path: str, messages: Sequence[BrokeredMessage]) -> pa.RecordBatch:
    rows = [_row(path, message) for message in messages]
    return pa.record_batch([list(values) for values in zip(*rows, strict=True)], schema=COLUMNS)


def _row(path: str, message: BrokeredMessage) -> tuple[object, ...]:
    properties = message.properties
    parked_for = properties.get(PATH)
    entity = key_of(parked_for) if isinstance(parked_for, str) else None
    session = properties.get(SESSION_ID) if entity is not None else message.session_id
    return (
        path,
        entity,
        text_of(message.message_id),
        text_of(session),
        message.sequence_number,
        message.state,
        message.enqueued_time_utc,
        None,
    )


def _failed(path: str, why: str) -> pa.RecordBatch:
    return pa.record_batch([[value] for value in (path, None, None, None, None, None, None, why)], schema=COLUMNS)
