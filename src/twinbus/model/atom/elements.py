"""Elements of descriptions.

Owns the conversion between an entity's properties and individual XML elements. Some elements are set by clients, others
only by the service. `descriptions` defines which elements each description has.
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
    """Element of a description."""

    @property
    def since_version(self) -> str:
        """First api-version that has the element, or "" for all versions."""

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # info of any entity
        """Add the element to a description."""


@runtime_checkable
class SettableElement(DescriptionElement, Protocol):
    """Element that clients can set."""

    @property
    def field(self) -> str:
        """Field of the description that the element sets."""

    def read(self, element: Element, current: Any, now_ms: int) -> Any:  # noqa: ANN401  # type of the field
        """Read the value from a client's request; `current` is the present description, or None."""

    def read_response(self, element: Element) -> Any:  # noqa: ANN401  # type of the field
        """Read the value from a service's response."""


@runtime_checkable
class RuntimeElement(DescriptionElement, Protocol):
    """Element with runtime information about an entity."""

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """Return the fields of the entity's runtime information; `found` maps names, including `name`, to elements."""


def build_unchecked(cls: type[D], values: Mapping[str, object]) -> D:
    """Create a model dataclass from a service's response without validating it.

    Another service may have sizes, statuses and names that are invalid here, and one such value must not make a whole
    list unreadable.
    """
    instance = object.__new__(cls)
    for field in fields(cls):  # type: ignore[arg-type]  # descriptions are dataclasses
        object.__setattr__(instance, field.name, values.get(field.name, field.default))
    return instance


# --- elements that clients set ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingElement:
    """Element for a setting of a description."""

    field: str
    value_format: ValueFormat
    since_version: str = ""

    def read(self, element: Element, _current: object, _now_ms: int) -> Any:  # noqa: ANN401  # type of the field
        """Read the value from a client's request."""
        return self.value_format.read(self._text(element))

    def read_response(self, element: Element) -> Any:  # noqa: ANN401  # type of the field
        """Read the value from a service's response."""
        return (self.value_format.read_response or self.value_format.read)(self._text(element))

    def _text(self, element: Element) -> str:
        text = envelope.element_text(element)
        return text if self.value_format.keeps_whitespace else text.strip()

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # info of any entity
        """Add the element unless the value is None."""
        value = getattr(info.description, self.field)
        if value is not None:
            envelope.add_element(root, name, self.value_format.write(value, context))


# --- read-only elements -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuntimeValueElement:
    """Read-only element with one field of the runtime information."""

    field: str
    """Field of the entity's runtime information."""
    value_format: ValueFormat
    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, context: WriteContext) -> None:  # noqa: ANN401  # info of any entity
        """Add the element to a description."""
        envelope.add_element(root, name, self.value_format.write(getattr(info.runtime, self.field), context))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """Read the field from a service's response."""
        return {self.field: self.value_format.read(envelope.element_text(found[name]).strip())}


@dataclass(frozen=True, slots=True)
class ConstantElement:
    """Element with the same text for every entity."""

    text: str
    since_version: str = ""

    def write(self, root: Element, name: str, _info: object, _context: WriteContext) -> None:
        """Add the element to a description."""
        envelope.add_element(root, name, self.text)


@dataclass(frozen=True, slots=True)
class CountDetailsElement:
    """Element with an entity's message counts by kind."""

    fields: Mapping[str, str | None]
    """Fields of the runtime information by element name; None for counts that are always 0."""
    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # info of any entity
        """Add the counts.

        The element must have only one attribute, because the JavaScript SDK takes the prefix of the children from the
        name of that attribute.
        """
        counts = envelope.add_element(root, name, **{"xmlns:d2p1": envelope.COUNTS_NAMESPACE})
        for kind, field in self.fields.items():
            count = 0 if field is None else getattr(info.runtime, field)
            envelope.add_element(counts, f"d2p1:{kind}", str(count))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """Read the counts from a service's response."""
        counts: dict[str, int] = {}
        for child in found[name]:
            field = self.fields.get(child.tag.rpartition("}")[2])
            if field is not None:
                counts[field] = value_formats.NUMBER.read(envelope.element_text(child).strip())
        return counts


MESSAGE_COUNTS: Final = CountDetailsElement(
    {
        "ActiveMessageCount": "active_count",
        "DeadLetterMessageCount": "dead_letter_count",
        "ScheduledMessageCount": "scheduled_count",
        "TransferMessageCount": "transfer_count",
        "TransferDeadLetterMessageCount": "transfer_dead_letter_count",
    }
)
"""Message counts of queues and subscriptions."""


@dataclass(frozen=True, slots=True)
class MessageCountElement:
    """Total message count: the counts in `MESSAGE_COUNTS` plus deferred messages, which have no element."""

    since_version: str = ""

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # info of any entity
        """Add the total to a description."""
        counted = [field for field in MESSAGE_COUNTS.fields.values() if field is not None]
        total = sum(getattr(info.runtime, field) for field in (*counted, "deferred_count"))
        envelope.add_element(root, name, str(total))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """Return the deferred count: the total minus all other counts. Azure counts deferred messages as active."""
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
