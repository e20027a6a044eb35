"""Options for queries that read: entity, offsets, batch sizes, and completion of processed messages.

Owns the options for the reading half of the data source, their defaults and their validation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client.factory import MessagingFactory
from twinbus.client.receiver import MAX_PREFETCH
from twinbus.model.path import SubQueue, canonical_key, parse_address, relative_path
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.option_parser import SPARK_OPTIONS, OptionParser

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_LATEST_NUMBER: Final = -1
"""Number that means `latest` in a list of offsets."""
COMPLETE_NONE: Final = "none"
COMPLETE_PROCESSED: Final = "processed"
OPTION_NAMES: Final = (
    "connectionString",
    "entity",
    "caFile",
    "operationTimeout",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxEventsPerTrigger",
    "minPartitions",
    "maxOffsetsPerPartition",
    "includeHeaders",
    "prefetchCount",
    "complete",
    "exclusive",
)
DEFAULT_PREFETCH: Final = 2_000
_DEFAULT_TIMEOUT_S: Final = 60.0

OffsetSpec = str | dict[int, int]
"""Start or end of a range: `earliest`, `latest`, or sequence numbers for some fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options for a query that reads."""

    connection_string: str = field(repr=False)
    entity: str
    ca_file: str | None = None
    operation_timeout_s: float = _DEFAULT_TIMEOUT_S
    starting_offsets: OffsetSpec = EARLIEST
    ending_offsets: OffsetSpec = LATEST
    fails_on_data_loss: bool = True
    max_per_trigger: int | None = None
    min_partitions: int = 1
    max_per_partition: int | None = None
    with_properties: bool = True
    prefetch: int = DEFAULT_PREFETCH
    completes_processed: bool = False
    """Whether processed messages are completed."""
    is_exclusive: bool = True
    """Whether other receivers are refused while the query runs."""

    @property
    def starts_at_latest(self) -> bool:
        """Whether a fragment starts at `latest`, so that the start of a new query depends on when Spark requests it."""
        numbers = self.starting_offsets.values() if isinstance(self.starting_offsets, dict) else ()
        return self.starting_offsets == LATEST or _LATEST_NUMBER in numbers


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options. Raise PipelineError if an option is invalid."""
    parser = OptionParser(options, OPTION_NAMES, purpose="reading", ignored=SPARK_OPTIONS)
    entity = _entity_option(parser, options.get("path"))
    if not entity:
        raise PipelineError("servicebus needs the option entity: the path of a queue, or topic/Subscriptions/name")
    starting, completes = (
        _offset_spec(parser, "startingOffsets", EARLIEST),
        parser.choice("complete", (COMPLETE_NONE, COMPLETE_PROCESSED)),
    )
    if completes == COMPLETE_PROCESSED and starting != EARLIEST:
        raise PipelineError(
            "complete=processed completes every message up to the last that was processed, so it needs "
            "startingOffsets=earliest: messages before a later start would be completed unread"
        )
    return SourceOptions(
        connection_string=parser.connection_string("connectionString"),
        entity=_parse_entity(entity),
        ca_file=parser.text("caFile"),
        operation_timeout_s=parser.seconds("operationTimeout", _DEFAULT_TIMEOUT_S),
        starting_offsets=starting,
        ending_offsets=_offset_spec(parser, "endingOffsets", LATEST),
        fails_on_data_loss=parser.flag("failOnDataLoss", default=True),
        max_per_trigger=_count_by_either_name(parser, "maxOffsetsPerTrigger", "maxEventsPerTrigger"),
        min_partitions=parser.count("minPartitions", 1) or 1,
        max_per_partition=parser.count("maxOffsetsPerPartition"),
        with_properties=parser.flag("includeHeaders", default=True),
        prefetch=parser.count("prefetchCount", DEFAULT_PREFETCH, max_value=MAX_PREFETCH) or DEFAULT_PREFETCH,
        completes_processed=completes == COMPLETE_PROCESSED,
        is_exclusive=parser.flag("exclusive", default=True),
    )


def _entity_option(parser: OptionParser, path: str | None) -> str | None:
    """Return the entity given as an option or as the argument of `load`."""
    named = parser.text("entity")
    if named and path and canonical_key(relative_path(named)) != canonical_key(relative_path(path)):
        raise PipelineError(f"the option entity is {named!r:.80}, but load(...) names {path!r:.80}: give one of them")
    return named or path


def _parse_entity(text: str) -> str:
    address = parse_address(text)
    if address.is_management or not address.entity:
        raise PipelineError(
            f"the option entity is {text!r:.80}; use the path of a queue, topic/Subscriptions/name, or one of these "
            f"with {SubQueue.DEAD_LETTER.value} appended"
        )
    return address.path


def _count_by_either_name(parser: OptionParser, name: str, alias: str) -> int | None:
    first, second = parser.count(name), parser.count(alias)
    if first is not None and second is not None and first != second:
        raise PipelineError(f"{name} and {alias} are two names of the same option: give one of them")
    return first if first is not None else second


def _offset_spec(parser: OptionParser, name: str, default: str) -> OffsetSpec:
    text = parser.text(name)
    if text is None:
        return default
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        numbers = json.loads(text)
        offsets = {int(fragment): int(number) for fragment, number in numbers.items()}
    except (ValueError, TypeError, AttributeError):
        offsets = {-1: -1}
    if any(fragment < 0 or number < -2 for fragment, number in offsets.items()):  # noqa: PLR2004  # -2 is earliest
        raise PipelineError(
            f"the option {name} is {text!r:.80}; use {EARLIEST}, {LATEST}, or numbers by fragment as JSON: "
            '{"0": 17, "1": 4}, where -2 is earliest and -1 latest'
        )
    return offsets


def connect(options: SourceOptions) -> MessagingFactory:
    """Return a messaging factory, which the caller must close."""
    return MessagingFactory.from_connection_string(
        options.connection_string, ca_file=options.ca_file, operation_timeout=options.operation_timeout_s
    )
