"""The parts of a description: one element each.

Owns: how an element is made from what is known of an entity, and what is known from an element. There are those that
clients set, and those that only the service knows. Which elements a description has is in its form.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from twinbus.model.atom import envelope, value_formats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.value_formats import ValueFormat, WriteContext

D = TypeVar("D")
COUNT_DETAILS: Final = "CountDetails"


class DescriptionElement(Protocol):
    """One element of a description."""

    @property
    def since_version(self) -> str:
        """The first api-version that has it; "" if all do."""

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # of one of the entities
        """Add the element to a description."""


@runtime_checkable
class SettableElement(DescriptionElement, Protocol):
    """One that clients set; the others are for the service alone to say."""

    @property
    def field(self) -> str:
        """What is set with it."""

    def read(self, element: Element, current: Any, now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """What a client sent; `current` is the description that there is, if there is one."""

    def read_response(self, element: Element) -> Any:  # noqa: ANN401  # of the field's type
        """What a service shows."""


@runtime_checkable
class RuntimeElement(DescriptionElement, Protocol):
    """One that tells what an entity holds."""

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """Fields of the entity's runtime; `found` has all elements of the description, `name` among them."""


def build_unchecked(cls: type[D], values: Mapping[str, object]) -> D:
    """A dataclass of the model as a service shows it: not held against what could be asked for here.

    Another service has sizes, statuses and names that are refused here, and one of them must not hide a whole list.
    """
    made = object.__new__(cls)
    for field in fields(cls):  # type: ignore[arg-type]  # descriptions are dataclasses
        object.__setattr__(made, field.name, values.get(field.name, field.default))
    return made


# --- what clients set -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingElement:
    """A property that clients set."""

    field: str
    value_format: ValueFormat
    since_version: str = ""

    def read(self, element: Element, _current: object, _now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """The value."""
        return self.value_format.read(self._text(element))

    def read_response(self, element: Element) -> Any:  # noqa: ANN401  # of the field's type
        """The value."""
        return (self.value_format.read_response or self.value_format.read)(self._text(element))

    def _text(self, element: Element) -> str:
        text = envelope.element_text(element)
        return text if self.value_format.keeps_whitespace else text.strip()

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # of one of the entities
        """Nothing is written for what is not set."""
        value = getattr(info.description, self.field)
        if value is not None:
            envelope.add_element(root, name, self.value_format.write(value, context))


# --- what the service tells -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuntimeValueElement:
    """What only the service knows."""

    field: str
    """Of the entity's runtime."""
    value_format: ValueFormat
    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # of one of the entities
        """The element and its text."""
        envelope.add_element(root, name, self.value_format.write(getattr(info.runtime, self.field), context))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """The value."""
        return {self.field: self.value_format.read(envelope.element_text(found[name]).strip())}


@dataclass(frozen=True, slots=True)
class ConstantElement:
    """What is so for every entity."""

    text: str
    since_version: str = ""

    def write(self, root: Element, name: str, _info: object, _context: WriteContext) -> None:
        """The element and its text."""
        envelope.add_element(root, name, self.text)


@dataclass(frozen=True, slots=True)
class CountDetailsElement:
    """How many messages of each kind an entity holds."""

    fields: Mapping[str, str | None]
    """Of its runtime, by the names of their elements; None is one that is always 0."""
    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # of one of the entities
        """JavaScript finds the prefix of the children by taking the one attribute there is: a second would stop it."""
        counts = envelope.add_element(root, name, **{"xmlns:d2p1": envelope.COUNTS_NAMESPACE})
        for kind, field in self.fields.items():
            count = 0 if field is None else getattr(info.runtime, field)
            envelope.add_element(counts, f"d2p1:{kind}", str(count))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """The numbers."""
        told: dict[str, int] = {}
        for child in found[name]:
            field = self.fields.get(child.tag.rpartition("}")[2])
            if field is not None:
                told[field] = value_formats.NUMBER.read(envelope.element_text(child).strip())
        return told


MESSAGE_COUNTS: Final = CountDetailsElement(
    {
        "ActiveMessageCount": "active_count",
        "DeadLetterMessageCount": "dead_letter_count",
        "ScheduledMessageCount": "scheduled_count",
        "TransferMessageCount": "transfer_count",
        "TransferDeadLetterMessageCount": "transfer_dead_letter_count",
    }
)
"""Of an entity that messages are received from."""


@dataclass(frozen=True, slots=True)
class MessageCountElement:
    """All messages: those of `MESSAGE_COUNTS`, and the deferred ones, which have no element of their own."""

    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # of one of the entities
        """The element and its text."""
        counted = [field for field in MESSAGE_COUNTS.fields.values() if field is not None]
        total = sum(getattr(info.runtime, field) for field in (*counted, "deferred_count"))
        envelope.add_element(root, name, str(total))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """What is left of the total when all others are taken off. Azure counts deferred messages as active."""
        if COUNT_DETAILS not in found:
            return {}
        total: int = value_formats.NUMBER.read(envelope.element_text(found[name]).strip())
        return {"deferred_count": max(0, total - sum(MESSAGE_COUNTS.read_runtime(found, COUNT_DETAILS).values()))}


CREATED_AT: Final = RuntimeValueElement("created_ms", value_formats.TIMESTAMP)
UPDATED_AT: Final = RuntimeValueElement("updated_ms", value_formats.TIMESTAMP)
ACCESSED_AT: Final = RuntimeValueElement("accessed_ms", value_formats.TIMESTAMP)
AVAILABILITY: Final = RuntimeValueElement("is_available", value_formats.AVAILABILITY)
SIZE: Final = RuntimeValueElement("size_bytes", value_formats.NUMBER)
ALWAYS_FALSE: Final = ConstantElement("false")
PARTITIONING: Final = SettingElement(
    "enable_partitioning", value_formats.BOOLEAN, since_version=value_formats.PARTITIONING_SINCE
)
