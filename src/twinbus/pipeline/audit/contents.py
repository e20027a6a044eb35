"""Contents of entities: all active, locked, deferred or scheduled messages at a location, without bodies.

Owns peeking, page by page, in one Spark task per location. Peeking changes nothing and does not delay receivers. If a
location does not exist, or one of its fragments is unavailable, a row with an error marks the location as incomplete. A
parked message is returned with its original destination and session.
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
from twinbus.model.path import canonical_key
from twinbus.pipeline.spark import register_data_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from twinbus.client.settings import ClientOptions

SOURCE_NAME: Final = "twinbus-places"
PAGE_SIZE: Final = 1_000
TIMEOUT_S: Final = 60.0
_PEEK_OPERATION: Final = "com.microsoft:peek-message"
_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("place", pa.string()),
        pa.field("entity", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("enqueued", _TIMESTAMP_TYPE),
        pa.field("error", pa.string()),
    ]
)
SPARK_SCHEMA: Final = (
    "place string, entity string, message_id string, session_id string, number bigint, state string,"
    " enqueued timestamp, error string"
)


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """Connection settings of a namespace."""

    connection_string: str
    ca_files: tuple[str, ...] = ()
    """Additional trusted certificate authorities."""

    def __repr__(self) -> str:
        """Return a representation without the key."""
        return "Access(...)"

    def client_options(self) -> ClientOptions:
        """Return the client options other than the connection string."""
        context = ssl.create_default_context()
        for file in self.ca_files:
            context.load_verify_locations(file)
        return {"tls": context, "operation_timeout": TIMEOUT_S}

    def create_factory(self) -> MessagingFactory:
        """Return a messaging factory."""
        return MessagingFactory.from_connection_string(self.connection_string, **self.client_options())


def empty_contents(spark: SparkSession) -> DataFrame:
    """Return a DataFrame without rows, for locations that are not inspected."""
    return spark.createDataFrame([], SPARK_SCHEMA)


def read_contents(spark: SparkSession, access: NamespaceAccess, locations: Sequence[str]) -> DataFrame:
    """Read the messages at these locations now. The result is checkpointed, so that messages are read only once."""
    if not locations:
        return empty_contents(spark)
    register_data_source(spark, ContentsDataSource)
    values = {"places": list(locations), "connectionString": access.connection_string, "caFiles": access.ca_files}
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return spark.read.format(SOURCE_NAME).options(**options).load().localCheckpoint(eager=True)


class ContentsDataSource(DataSource):
    """The data source behind `read_contents`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return SOURCE_NAME

    def schema(self) -> str:
        """Return the columns."""
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> ContentsReader:  # noqa: ARG002
        """Return a reader for the locations in the option `places`."""
        access = NamespaceAccess(self.options["connectionString"], tuple(json.loads(self.options["caFiles"])))
        return ContentsReader(access, json.loads(self.options["places"]))


@dataclass
class LocationPartition(InputPartition):
    """A location that one task reads."""

    path: str


class ContentsReader(DataSourceReader):
    """A reader that holds no more than one page of a location in memory."""

    def __init__(self, access: NamespaceAccess, locations: Sequence[str]) -> None:
        """Create a reader for locations in one namespace."""
        self._access = access
        self._locations = locations

    def partitions(self) -> list[InputPartition]:
        """Return one partition per location."""
        return [LocationPartition(path) for path in self._locations]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages at the partition's location."""
        assert isinstance(partition, LocationPartition)
        return read_location(self._access, partition.path)


def read_location(access: NamespaceAccess, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the messages at a location, page by page. An error becomes a row."""
    loop = asyncio.new_event_loop()
    pages = _peek_pages(access, path)
    try:
        while True:
            try:
                page = loop.run_until_complete(anext(pages))
            except StopAsyncIteration:
                return
            except (ServiceBusError, AmqpError, OSError) as error:
                yield _failure_batch(path, f"{type(error).__name__}: {error}")
                return
            yield page
    finally:
        loop.run_until_complete(pages.aclose())  # type: ignore[attr-defined]  # an async generator
        loop.close()


async def _peek_pages(access: NamespaceAccess, path: str) -> AsyncIterator[pa.RecordBatch]:
    start = 1
    async with access.create_factory() as factory:
        while True:
            request = partial(factory.request, path, _PEEK_OPERATION, _peek_request(start), timeout_s=TIMEOUT_S)
            answer = await factory.run_with_retries(f"peeking '{path}'", request, timeout_s=None)
            unavailable = answer.body.get("twinbus:unavailable-fragments")
            if unavailable:
                yield _failure_batch(path, f"fragments {unavailable} are unavailable")
                return
            values = answer.body.get("messages")
            entries = values if isinstance(values, list) else []
            messages = [BrokeredMessage.decode(bytes(entry["message"]), is_peeked=True) for entry in entries]
            if not messages:
                return
            start = messages[-1].sequence_number + 1
            yield _to_record_batch(path, messages)


def _peek_request(from_sequence_number: int) -> dict[str, object]:
    return {"from-sequence-number": from_sequence_number, "message-count": Int(PAGE_SIZE), "omit-message-body": True}


def _to_record_batch(path: str, messages: Sequence[BrokeredMessage]) -> pa.RecordBatch:
    rows = [_to_row(path, message) for message in messages]
    return pa.record_batch([list(values) for values in zip(*rows, strict=True)], schema=ARROW_SCHEMA)


def _to_row(path: str, message: BrokeredMessage) -> tuple[object, ...]:
    properties = message.properties
    parked_for = properties.get(PATH)
    entity = canonical_key(parked_for) if isinstance(parked_for, str) else None
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


def _failure_batch(path: str, reason: str) -> pa.RecordBatch:
    return pa.record_batch(
        [[value] for value in (path, None, None, None, None, None, None, reason)], schema=ARROW_SCHEMA
    )
