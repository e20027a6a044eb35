"""What a job that reads says: from where, from which number to which, how much at once, and what becomes of messages.

Owns: the options of the reading half of the data source, their defaults, and what is wrong with one that cannot be.
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
"""What stands for it among numbers."""
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
"""Where a range begins or ends: `earliest`, `latest`, or a number for some fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All of it."""

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
    """What was processed is completed."""
    is_exclusive: bool = True
    """Nobody else may receive meanwhile."""

    @property
    def starts_at_latest(self) -> bool:
        """Where a new query begins depends on when it is asked: any fragment begins at the latest."""
        numbers = self.starting_offsets.values() if isinstance(self.starting_offsets, dict) else ()
        return self.starting_offsets == LATEST or _LATEST_NUMBER in numbers


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """What the options come to; PipelineError names the one that cannot be."""
    found = OptionParser(options, OPTION_NAMES, purpose="reading", ignored=SPARK_OPTIONS)
    entity = _entity_option(found, options.get("path"))
    if not entity:
        raise PipelineError("servicebus needs the option entity: the path of a queue, or topic/Subscriptions/name")
    starting, completes = (
        _offset_spec(found, "startingOffsets", EARLIEST),
        found.choice("complete", (COMPLETE_NONE, COMPLETE_PROCESSED)),
    )
    if completes == COMPLETE_PROCESSED and starting != EARLIEST:
        raise PipelineError(
            "complete=processed completes every message up to the last that was processed, so it needs "
            "startingOffsets=earliest: those before another start would be completed, and nobody had them"
        )
    return SourceOptions(
        connection_string=found.connection_string("connectionString"),
        entity=_parse_entity(entity),
        ca_file=found.text("caFile"),
        operation_timeout_s=found.seconds("operationTimeout", _DEFAULT_TIMEOUT_S),
        starting_offsets=starting,
        ending_offsets=_offset_spec(found, "endingOffsets", LATEST),
        fails_on_data_loss=found.flag("failOnDataLoss", default=True),
        max_per_trigger=_count_by_either_name(found, "maxOffsetsPerTrigger", "maxEventsPerTrigger"),
        min_partitions=found.count("minPartitions", 1) or 1,
        max_per_partition=found.count("maxOffsetsPerPartition"),
        with_properties=found.flag("includeHeaders", default=True),
        prefetch=found.count("prefetchCount", DEFAULT_PREFETCH, max_value=MAX_PREFETCH) or DEFAULT_PREFETCH,
        completes_processed=completes == COMPLETE_PROCESSED,
        is_exclusive=found.flag("exclusive", default=True),
    )


def _entity_option(parser: OptionParser, path: str | None) -> str | None:
    """The entity: by the option, or by the argument of load."""
    named = parser.text("entity")
    if named and path and canonical_key(relative_path(named)) != canonical_key(relative_path(path)):
        raise PipelineError(f"the option entity is {named!r:.80}, and load(...) says {path!r:.80}: give one of them")
    return named or path


def _parse_entity(text: str) -> str:
    address = parse_address(text)
    if address.is_management or not address.entity:
        raise PipelineError(
            f"the option entity is {text!r:.80}; it is the path of a queue, topic/Subscriptions/name, or one of these "
            f"with {SubQueue.DEAD_LETTER.value} behind it"
        )
    return address.path


def _count_by_either_name(parser: OptionParser, name: str, alias: str) -> int | None:
    first, second = parser.count(name), parser.count(alias)
    if first is not None and second is not None and first != second:
        raise PipelineError(f"{name} and {alias} are two names of one option: give one of them")
    return first if first is not None else second


def _offset_spec(parser: OptionParser, name: str, default: str) -> OffsetSpec:
    text = parser.text(name)
    if text is None:
        return default
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        numbers = json.loads(text)
        edge = {int(fragment): int(number) for fragment, number in numbers.items()}
    except (ValueError, TypeError, AttributeError):
        edge = {-1: -1}
    if any(fragment < 0 or number < -2 for fragment, number in edge.items()):  # noqa: PLR2004  # see `numbers_at`
        raise PipelineError(
            f"the option {name} is {text!r:.80}; it is {EARLIEST}, {LATEST}, or numbers by fragment as JSON: "
            '{"0": 17, "1": 4}, where -2 is earliest and -1 latest'
        )
    return edge


def connect(options: SourceOptions) -> MessagingFactory:
    """A factory, to be closed by whoever asked for it."""
    return MessagingFactory.from_connection_string(
        options.connection_string, ca_file=options.ca_file, operation_timeout=options.operation_timeout_s
    )
