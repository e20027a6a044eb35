"""What descriptions of entities have in common when they are written as XML.

Owns: kinds of values, and forms: tables that name the elements of a description, in the order in which they are
written. What is a valid value is the model's to say; an error names the element and the value that it was about.
Any order is read, and what is not known or not for clients to say is passed over: descriptions come back with counts
and dates in them, and from newer SDKs with elements nobody here has heard of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from twinbus.model import path
from twinbus.model.description import STATUSES
from twinbus.model.errors import InvalidArgument
from twinbus.server.http import atom, durations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

D = TypeVar("D")

NEWEST: Final = "2024-05"
PARTITIONING_SINCE: Final = "2013-10"
FILTER_COUNTS_SINCE: Final = "2024-05"
RULES: Final = "AuthorizationRules"

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_KEPT: Final = ("requires_duplicate_detection", "requires_session", "enable_partitioning", "authorization_rules")
"""What stays as it is when an update does not name it: what is fixed at creation, since a client of an api-version that
does not know of partitions cannot repeat what it was not shown; and keys, which are gone for good when they are gone.
"""


# --- values -----------------------------------------------------------------------------------------------------------


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidArgument("it has to be true or false")
    return _BOOLEANS[text.lower()]


def _read_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidArgument("it has to be a whole number")
    return int(text)


def _read_status(text: str) -> str:
    for status in STATUSES:
        if status.lower() == text.lower():
            return status
    raise InvalidArgument(f"it has to be {', '.join(STATUSES)}")


def _read_entity(text: str) -> str | None:
    # The SDKs send sb://host/name for a name, and show what comes back: inside, it is the name.
    return path.check_name(path.relative(text)) if text else None


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one kind are read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any, View], str] = lambda value, _: str(value)
    is_text: bool = False
    """Blanks at its ends belong to it."""


DURATION: Final = Kind(durations.parse, lambda value, _: durations.write(value))
BOOLEAN: Final = Kind(_read_boolean, lambda value, _: str(value).lower())
NUMBER: Final = Kind(_read_number)
STATUS: Final = Kind(_read_status)
ENTITY: Final = Kind(_read_entity, lambda value, view: f"sb://{view.host}/{value}")
TEXT: Final = Kind(lambda text: text or None, is_text=True)


# --- forms ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """Who a description is written for."""

    host: str
    """The service, as the reader knows it."""
    version: str
    """The reader's api-version."""


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


@dataclass(frozen=True, slots=True)
class Setting:
    """A property that clients set."""

    field: str
    kind: Kind
    since: str = ""

    def read(self, element: Element, _current: object, _now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """The value."""
        text = atom.text(element)
        return self.kind.read(text if self.kind.is_text else text.strip())

    def write(self, root: Element, name: str, info: Any, view: View) -> None:  # noqa: ANN401  # of one of the entities
        """Nothing is written for what is not set."""
        value = getattr(info.description, self.field)
        if value is not None:
            atom.add(root, name, self.kind.write(value, view))


@dataclass(frozen=True, slots=True)
class Reading:
    """What only the service knows."""

    of: Callable[[Any], object]
    """Made from what is known of an entity."""
    since: str = ""

    def write(self, root: Element, name: str, info: object, _view: View) -> None:
        """The element and its text."""
        atom.add(root, name, str(self.of(info)))


@dataclass(frozen=True, slots=True)
class Counts(Reading):
    """How many messages of each kind an entity holds: `of` has the numbers by the names of their elements."""

    of: Callable[[Any], Mapping[str, int]]

    def write(self, root: Element, name: str, info: object, _view: View) -> None:
        """JavaScript finds the prefix of the children by taking the one attribute there is: a second would stop it."""
        counts = atom.add(root, name, **{"xmlns:d2p1": atom.COUNTS})
        for kind, count in self.of(info).items():
            atom.add(counts, f"d2p1:{kind}", str(count))


@dataclass(frozen=True, slots=True)
class Form(Generic[D]):
    """How the descriptions of one kind of entity are written."""

    tag: str
    description: type[D]
    parts: Mapping[str, Part]
    """By the names of their elements, in the order of the contract."""

    def read(self, root: Element, current: D | None = None, *, now_ms: int = 0) -> D:
        """The description that a client sent; `current` is the entity's, when it is updated.

        What the client leaves out has its default, so that a ForwardTo can be taken away; see `_KEPT`.
        """
        values = {field: getattr(current, field) for field in _KEPT if current is not None and hasattr(current, field)}
        found = atom.children(root)
        if RULES not in self.parts and len(found.get(RULES, ())):
            raise InvalidArgument(f"{RULES}: only queues and topics have keys of their own, not a {self.tag}")
        for name, element in found.items():
            part = self.parts.get(name)
            if isinstance(part, SettablePart):
                values[part.field] = self._value(name, part, element, current, now_ms)
        return self.description(**values)

    def _value(self, name: str, part: SettablePart, element: Element, current: D | None, now_ms: int) -> Any:  # noqa: ANN401  # of the field's type
        """One value, held against the model alone, so that an error can say which element it was."""
        try:
            value = part.read(element, current, now_ms)
            self.description(**{part.field: value})
        except InvalidArgument as error:
            said = f" is {element.text or ''!r:.80}" if isinstance(part, Setting) else ""  # others may be secret
            raise type(error)(f"{name}{said}: {error}") from None
        return value

    def write(self, info: Any, view: View) -> Element:  # noqa: ANN401  # of one of the entities
        """The description of an entity as it is now."""
        root = atom.new_description(self.tag)
        for name, part in self.parts.items():
            if view.version >= part.since:
                part.write(root, name, info, view)
        return root


# --- parts that several have ------------------------------------------------------------------------------------------


def message_counts(info: Any) -> dict[str, int]:  # noqa: ANN401  # of a queue or a subscription
    """What CountDetails tells of an entity that messages are received from."""
    return {
        "ActiveMessageCount": info.runtime.active_count,
        "DeadLetterMessageCount": info.runtime.dead_letter_count,
        "ScheduledMessageCount": info.runtime.scheduled_count,
        "TransferMessageCount": info.runtime.transfer_count,
        "TransferDeadLetterMessageCount": info.runtime.transfer_dead_letter_count,
    }


CREATED_AT: Final = Reading(lambda info: atom.timestamp(info.runtime.created_ms))
UPDATED_AT: Final = Reading(lambda info: atom.timestamp(info.runtime.updated_ms))
ACCESSED_AT: Final = Reading(lambda info: atom.timestamp(info.runtime.accessed_ms))
AVAILABILITY: Final = Reading(lambda info: "Available" if info.runtime.is_available else "Limited")
SIZE: Final = Reading(lambda info: info.runtime.size_bytes)
MESSAGE_COUNT: Final = Reading(lambda info: sum(message_counts(info).values()) + info.runtime.deferred_count)
NO: Final = Reading(lambda _: "false")
PARTITIONING: Final = Setting("enable_partitioning", BOOLEAN, since=PARTITIONING_SINCE)
