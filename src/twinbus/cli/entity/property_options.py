"""The properties of entities as options: names, notations and help texts.

    PROPERTIES["lock_duration_ms"].option   # --lock-duration

Owns the list from which `create` and `update` get their options, and `show` gets its names. The model validates values.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.cli.output import Misuse
from twinbus.cli.units import format_duration, parse_duration, parse_size
from twinbus.model.description import FIXED_AT_CREATION, SETTABLE_RANGES, SIZES_MB, STATUSES
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DESCRIPTIONS: Final = {"queue": QueueDescription, "topic": TopicDescription, "subscription": SubscriptionDescription}
_KIB: Final = 1_024
_MIB: Final = 1_048_576


class Unit(Enum):
    """Notation of a property's value."""

    DURATION = "DURATION"
    MEBIBYTES = "SIZE"
    KIBIBYTES = "SIZE "
    NUMBER = "NUMBER"
    FLAG = ""
    TEXT = "TEXT"
    PATH = "PATH"
    STATUS = "STATUS"


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a description as an option."""

    option: str
    unit: Unit
    text: str

    @property
    def declaration(self) -> str:
        """Option as typer declares it: a flag has a negative form."""
        name = self.option.removeprefix("--")
        return f"--{name}/--no-{name}" if self.unit is Unit.FLAG else self.option


PROPERTIES: Final[dict[str, Property]] = {
    "enable_partitioning": Property("--partitioned", Unit.FLAG, "Spread the messages over 16 fragments in all stores."),
    "max_size_mb": Property(
        "--max-size", Unit.MEBIBYTES, "Maximum size, 1GB to 5GB; a partitioned entity has 16 times as much."
    ),
    "max_message_kb": Property("--max-message-size", Unit.KIBIBYTES, "Maximum size of a message, such as 1MB."),
    "requires_session": Property("--sessions", Unit.FLAG, "Require that every message has a session."),
    "requires_duplicate_detection": Property("--duplicate-detection", Unit.FLAG, "Discard messages sent twice."),
    "duplicate_window_ms": Property("--duplicate-window", Unit.DURATION, "How long to remember message ids."),
    "default_time_to_live_ms": Property("--time-to-live", Unit.DURATION, "Time to live of messages without their own."),
    "lock_duration_ms": Property("--lock-duration", Unit.DURATION, "How long a received message is locked, 5s to 5m."),
    "max_delivery_count": Property(
        "--max-delivery-count", Unit.NUMBER, "Deliveries after which a message is dead-lettered."
    ),
    "dead_lettering_on_expiration": Property(
        "--dead-letter-expired", Unit.FLAG, "Dead-letter expired messages instead of deleting them."
    ),
    "dead_lettering_on_filter_errors": Property(
        "--dead-letter-filter-errors", Unit.FLAG, "Dead-letter messages for which a filter fails."
    ),
    "forward_to": Property("--forward-to", Unit.PATH, "Queue or topic to move all messages to; '' for none."),
    "forward_dead_lettered_to": Property(
        "--forward-dead-letters-to", Unit.PATH, "Queue or topic to move dead letters to; '' for none."
    ),
    "auto_delete_on_idle_ms": Property(
        "--auto-delete-after", Unit.DURATION, "Delete the entity when it was idle for so long, at least 5m."
    ),
    "status": Property("--status", Unit.STATUS, f"{', '.join(STATUSES)}."),
    "user_metadata": Property("--metadata", Unit.TEXT, "Text that is stored with the entity; '' for none."),
    "enable_batched_operations": Property("--batched-operations", Unit.FLAG, "Stored, without effect."),
    "support_ordering": Property("--ordering", Unit.FLAG, "Stored, without effect."),
    "enable_express": Property("--express", Unit.FLAG, "Stored, without effect."),
    "filtering_messages_before_publishing": Property(
        "--filter-before-publishing", Unit.FLAG, "Stored, without effect."
    ),
}


def options_of(kind: str, *, is_update: bool) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command that creates or updates an entity; none has a default."""
    names = {field.name for field in _fields(kind)}
    for name, one in PROPERTIES.items():
        if name in names and not (is_update and name in FIXED_AT_CREATION):
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(one))


def values_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were set, as fields of a description; an empty text becomes None.

    Raise Misuse, with the option, if a value is out of range.
    """
    for name, (lowest, highest) in SETTABLE_RANGES.items():
        value = options.get(name)
        if value is not None and not lowest <= value <= highest:
            bounds = f"{format_property(name, lowest)} to {format_property(name, highest)}"
            raise Misuse(f"{PROPERTIES[name].option} {format_property(name, value)}: use {bounds}")
    return {
        name: value or None if PROPERTIES[name].unit in (Unit.TEXT, Unit.PATH) else value
        for name, value in options.items()
        if name in PROPERTIES and value is not None
    }


def format_property(name: str, value: object) -> object:
    """Return the value of a property for tables."""
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_ms"):
            return format_duration(value)
        if name == "max_size_mb":
            return f"{value:,} MiB"
        return f"{value:,} KiB" if name == "max_message_kb" else f"{value:,}"
    return value


def _fields(kind: str) -> tuple[Any, ...]:
    return fields(DESCRIPTIONS[kind])


def _annotation(one: Property) -> object:
    parser = _PARSERS.get(one.unit)
    metavar = None if one.unit is Unit.FLAG else one.unit.value.strip()
    option = typer.Option(one.declaration, parser=parser, metavar=metavar, help=one.text, show_default=False)
    kind: Any = bool if one.unit is Unit.FLAG else int if parser or one.unit is Unit.NUMBER else str
    return Annotated[kind | None, option]


def _parse_mebibytes(text: str) -> int:
    """Return a size in MiB; 5GB means 5GiB, as everywhere in Service Bus."""
    size_mb = _binary_size(text) // _MIB
    if size_mb in SIZES_MB:
        return size_mb
    raise typer.BadParameter(f"{text!r:.60} cannot be a maximum size: use 1GB, 2GB, 3GB, 4GB or 5GB")


def _parse_kibibytes(text: str) -> int:
    """Return a size in KiB."""
    size = _binary_size(text)
    if size % _KIB:
        raise typer.BadParameter(f"{text!r:.60} is not a multiple of 1KB")
    return size // _KIB


def _binary_size(text: str) -> int:
    """Return a size in bytes; KB, MB and GB are powers of 1,024, as in the descriptions of Service Bus."""
    normal = text.strip().lower()
    is_decimal_unit = normal.endswith("b") and normal[-2:-1] in ("k", "m", "g", "t")
    return parse_size(f"{normal[:-1]}ib" if is_decimal_unit else normal)


_PARSERS: Final[dict[Unit, Callable[[str], int]]] = {
    Unit.DURATION: parse_duration,
    Unit.MEBIBYTES: _parse_mebibytes,
    Unit.KIBIBYTES: _parse_kibibytes,
}
