"""What a job that reads says: from where, from which number to which, how much at once, and what becomes of messages.

Owns: the options of the reading half of the data source, their defaults, and what is wrong with one that cannot be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client.factory import MessagingFactory
from twinbus.client.receiver import MAX_PREFETCH
from twinbus.model.path import SubQueue, key_of, parse, relative
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.given import SPARKS_OWN, Given

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_LATEST_NUMBER: Final = -1
"""What stands for it among numbers."""
NONE: Final = "none"
PROCESSED: Final = "processed"
OPTIONS: Final = (
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
PREFETCH: Final = 2_000
_TIMEOUT_S: Final = 60.0

Edge = str | dict[int, int]
"""Where a range begins or ends: `earliest`, `latest`, or a number for some fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All of it."""

    connection_string: str = field(repr=False)
    entity: str
    ca_file: str | None = None
    operation_timeout_s: float = _TIMEOUT_S
    starting: Edge = EARLIEST
    ending: Edge = LATEST
    fails_on_data_loss: bool = True
    max_per_trigger: int | None = None
    min_partitions: int = 1
    max_per_partition: int | None = None
    with_properties: bool = True
    prefetch: int = PREFETCH
    completes: bool = False
    """What was processed is completed."""
    is_exclusive: bool = True
    """Nobody else may receive meanwhile."""

    @property
    def begins_late(self) -> bool:
        """Where a new query begins depends on when it is asked: any fragment begins at the latest."""
        numbers = self.starting.values() if isinstance(self.starting, dict) else ()
        return self.starting == LATEST or _LATEST_NUMBER in numbers


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """What the options come to; PipelineError names the one that cannot be."""
    found = Given(given, OPTIONS, purpose="reading", ignored=SPARKS_OWN)
    entity = _named(found, given.get("path"))
    if not entity:
        raise PipelineError("servicebus needs the option entity: the path of a queue, or topic/Subscriptions/name")
    starting, completes = _edge(found, "startingOffsets", EARLIEST), found.choice("complete", (NONE, PROCESSED))
    if completes == PROCESSED and starting != EARLIEST:
        raise PipelineError(
            "complete=processed completes every message up to the last that was processed, so it needs "
            "startingOffsets=earliest: those before another start would be completed, and nobody had them"
        )
    return SourceOptions(
        connection_string=found.connection_string("connectionString"),
        entity=_entity(entity),
        ca_file=found.text("caFile"),
        operation_timeout_s=found.seconds("operationTimeout", _TIMEOUT_S),
        starting=starting,
        ending=_edge(found, "endingOffsets", LATEST),
        fails_on_data_loss=found.flag("failOnDataLoss", default=True),
        max_per_trigger=_one_of(found, "maxOffsetsPerTrigger", "maxEventsPerTrigger"),
        min_partitions=found.count("minPartitions", 1) or 1,
        max_per_partition=found.count("maxOffsetsPerPartition"),
        with_properties=found.flag("includeHeaders", default=True),
        prefetch=found.count("prefetchCount", PREFETCH, most=MAX_PREFETCH) or PREFETCH,
        completes=completes == PROCESSED,
        is_exclusive=found.flag("exclusive", default=True),
    )


def _named(found: Given, path: str | None) -> str | None:
    """The entity: by the option, or by the argument of load."""
    named = found.text("entity")
    if named and path and key_of(relative(named)) != key_of(relative(path)):
        raise PipelineError(f"the option entity is {named!r:.80}, and load(...) says {path!r:.80}: give one of them")
    return named or path


def _entity(text: str) -> str:
    address = parse(text)
    if address.is_management or not address.entity:
        raise PipelineError(
            f"the option entity is {text!r:.80}; it is the path of a queue, topic/Subscriptions/name, or one of these "
            f"with {SubQueue.DEAD_LETTER.value} behind it"
        )
    return address.path


def _one_of(found: Given, name: str, other: str) -> int | None:
    first, second = found.count(name), found.count(other)
    if first is not None and second is not None and first != second:
        raise PipelineError(f"{name} and {other} are two names of one option: give one of them")
    return first if first is not None else second


def _edge(found: Given, name: str, default: str) -> Edge:
    text = found.text(name)
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
