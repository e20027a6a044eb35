"""The parts of a description: one element each.

Owns: how an element is made from what is known of an entity, and what is known from an element. There are those that
clients set, and those that only the service knows. Which elements a description has is in its form.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from twinbus.model.atom import envelope, kinds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.kinds import Kind, View

D = TypeVar("D")
COUNT_DETAILS: Final = "CountDetails"


class Part(Protocol):
    """One element of a description."""

    @property
    def since(self) -> str:
        """The first api-version that has it; "" if all do."""

    def write(self, root: Element, name: str, info: Any, view: View) -> None:  # noqa: ANN401  # of one of the entities
        """Add the element to a description."""


@runtime_checkable
class SettablePart(Part, Protocol):
    """One that clients set; the others are for the service alone to say."""

    @property
    def field(self) -> str:
        """What is set with it."""

    def read(self, element: Element, current: Any, now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """What a client sent; `current` is the description that there is, if there is one."""

    def read_shown(self, element: Element) -> Any:  # noqa: ANN401  # of the field's type
        """What a service shows."""


@runtime_checkable
class RuntimePart(Part, Protocol):
    """One that tells what an entity holds."""

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """Fields of the entity's runtime; `found` has all elements of the description, `name` among them."""


def as_shown(kind: type[D], values: Mapping[str, object]) -> D:
    """A dataclass of the model as a service shows it: not held against what could be asked for here.

    Another service has sizes, statuses and names that are refused here, and one of them must not hide a whole list.
    """
    made = object.__new__(kind)
    for field in fields(kind):  # type: ignore[arg-type]  # descriptions are dataclasses
        object.__setattr__(made, field.name, values.get(field.name, field.default))
    return made


# --- what clients set -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A property that clients set."""

    field: str
    kind: Kind
    since: str = ""

    def read(self, element: Element, _current: object, _now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """The value."""
        return self.kind.read(self._text(element))

    def read_shown(self, element: Element) -> Any:  # noqa: ANN401  # of the field's type
        """The value."""
        return (self.kind.read_shown or self.kind.read)(self._text(element))

    def _text(self, element: Element) -> str:
        text = envelope.text(element)
        return text if self.kind.is_text else text.strip()

    def write(self, root: Element, name: str, info: Any, view: View) -> None:  # noqa: ANN401  # of one of the entities
        """Nothing is written for what is not set."""
        value = getattr(info.description, self.field)
        if value is not None:
            envelope.add(root, name, self.kind.write(value, view))


# --- what the service tells -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What only the service knows."""

    field: str
    """Of the entity's runtime."""
    kind: Kind
    since: str = ""

    def write(self, root: Element, name: str, info: Any, view: View) -> None:  # noqa: ANN401  # of one of the entities
        """The element and its text."""
        envelope.add(root, name, self.kind.write(getattr(info.runtime, self.field), view))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, Any]:
        """The value."""
        return {self.field: self.kind.read(envelope.text(found[name]).strip())}


@dataclass(frozen=True, slots=True)
class Constant:
    """What is so for every entity."""

    text: str
    since: str = ""

    def write(self, root: Element, name: str, _info: object, _view: View) -> None:
        """The element and its text."""
        envelope.add(root, name, self.text)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages of each kind an entity holds."""

    fields: Mapping[str, str | None]
    """Of its runtime, by the names of their elements; None is one that is always 0."""
    since: str = ""

    def write(self, root: Element, name: str, info: Any, _view: View) -> None:  # noqa: ANN401  # of one of the entities
        """JavaScript finds the prefix of the children by taking the one attribute there is: a second would stop it."""
        counts = envelope.add(root, name, **{"xmlns:d2p1": envelope.COUNTS})
        for kind, field in self.fields.items():
            count = 0 if field is None else getattr(info.runtime, field)
            envelope.add(counts, f"d2p1:{kind}", str(count))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """The numbers."""
        told: dict[str, int] = {}
        for child in found[name]:
            field = self.fields.get(child.tag.rpartition("}")[2])
            if field is not None:
                told[field] = kinds.NUMBER.read(envelope.text(child).strip())
        return told


MESSAGE_COUNTS: Final = Counts(
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
class Total:
    """All messages: those of `MESSAGE_COUNTS`, and the deferred ones, which have no element of their own."""

    since: str = ""

    def write(self, root: Element, name: str, info: Any, _view: View) -> None:  # noqa: ANN401  # of one of the entities
        """The element and its text."""
        counted = [field for field in MESSAGE_COUNTS.fields.values() if field is not None]
        total = sum(getattr(info.runtime, field) for field in (*counted, "deferred_count"))
        envelope.add(root, name, str(total))

    def read_runtime(self, found: Mapping[str, Element], name: str) -> Mapping[str, int]:
        """What is left of the total when all others are taken off. Azure counts deferred messages as active."""
        if COUNT_DETAILS not in found:
            return {}
        total: int = kinds.NUMBER.read(envelope.text(found[name]).strip())
        return {"deferred_count": max(0, total - sum(MESSAGE_COUNTS.read_runtime(found, COUNT_DETAILS).values()))}


CREATED_AT: Final = Reading("created_ms", kinds.MOMENT)
UPDATED_AT: Final = Reading("updated_ms", kinds.MOMENT)
ACCESSED_AT: Final = Reading("accessed_ms", kinds.MOMENT)
AVAILABILITY: Final = Reading("is_available", kinds.AVAILABILITY)
SIZE: Final = Reading("size_bytes", kinds.NUMBER)
NO: Final = Constant("false")
PARTITIONING: Final = Setting("enable_partitioning", kinds.BOOLEAN, since=kinds.PARTITIONING_SINCE)
