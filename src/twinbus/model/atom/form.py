"""Forms: how the description of one kind of entity is written as XML.

Owns: tables that name the elements of a description, in the order in which they are written. What is a valid value is
the model's to say; an error names the element and the value that it was about. Any order is read, and what is not known
or not for clients to say is passed over: descriptions come back with counts and dates in them, and from newer SDKs with
elements nobody here has heard of.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twinbus.model.atom import envelope
from twinbus.model.atom.parts import RuntimePart, SettablePart, Setting, as_shown
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.kinds import View
    from twinbus.model.atom.parts import Part

D = TypeVar("D")
R = TypeVar("R")

RULES: Final = "AuthorizationRules"
TARGETS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_to": "ServiceBusDlqSupplementaryAuthorization",
}
"""What a description forwards to, and the header with a token for it."""
KEPT: Final = ("requires_duplicate_detection", "requires_session", "enable_partitioning", "authorization_rules")
"""What stays as it is when an update does not name it: what is fixed at creation, since a client of an api-version that
does not know of partitions cannot repeat what it was not shown; and keys, which are gone for good when they are gone.
"""
_BESIDE: Final = ("enable_partitioning",)
"""What a value depends on: partitioned entities may be described by the size that they are shown with."""


@dataclass(frozen=True, slots=True)
class Form(Generic[D, R]):
    """How the descriptions of one kind of entity are written."""

    tag: str
    description: type[D]
    runtime: type[R]
    parts: Mapping[str, Part]
    """By the names of their elements, in the order of the contract."""

    def read(self, root: Element, current: D | None = None, *, now_ms: int = 0) -> D:
        """The description that a client sent; `current` is the entity's, when it is updated.

        What the client leaves out has its default, so that a ForwardTo can be taken away; see `KEPT`.
        """
        values = {field: getattr(current, field) for field in KEPT if current is not None and hasattr(current, field)}
        found = envelope.children(root)
        if RULES not in self.parts and len(found.get(RULES, ())):
            raise InvalidArgument(f"{RULES}: only queues and topics have keys of their own, not a {self.tag}")
        for name, element in sorted(found.items(), key=_partitioning_first):
            part = self.parts.get(name)
            if isinstance(part, SettablePart):
                beside = {field: values[field] for field in _BESIDE if field in values}
                values[part.field] = self._value(name, part, element, current, now_ms, beside)
        return self.description(**values)

    def _value(
        self,
        name: str,
        part: SettablePart,
        element: Element,
        current: D | None,
        now_ms: int,
        beside: dict[str, Any],
    ) -> Any:  # noqa: ANN401  # of the field's type
        """One value, held against the model alone, so that an error can say which element it was."""
        try:
            value = part.read(element, current, now_ms)
            self.description(**beside | {part.field: value})
        except InvalidArgument as error:
            said = f" is {element.text or ''!r:.80}" if isinstance(part, Setting) else ""  # others may be secret
            raise type(error)(f"{name}{said}: {error}") from None
        return value

    def write(self, info: Any, view: View) -> Element:  # noqa: ANN401  # of one of the entities
        """The description of an entity as it is now."""
        root = envelope.new_description(self.tag)
        for name, part in self.parts.items():
            if view.version >= part.since:
                part.write(root, name, info, view)
        return root

    # --- the other side -----------------------------------------------------------------------------------------------

    def write_wanted(self, description: D, view: View, *, is_update: bool) -> Element:
        """The description that a client asks for.

        What has its default is left out, and the service has it so as well: a namespace of another tier would refuse to
        be told of what it does not have. What an update would keep (see `KEPT`) is always said in one.
        """
        root = envelope.new_description(self.tag)
        wanted, plain = _Wanted(description), self.description()
        for name, part in self.parts.items():
            if isinstance(part, SettablePart):
                is_said = is_update and part.field in KEPT
                if is_said or getattr(description, part.field) != getattr(plain, part.field):
                    part.write(root, name, wanted, view)
        return root

    def read_shown(self, root: Element) -> D:
        """What an entity is told to be, as the service shows it."""
        values = {
            part.field: part.read_shown(element)
            for name, element in envelope.children(root).items()
            if isinstance(part := self.parts.get(name), SettablePart)
        }
        return as_shown(self.description, values)

    def read_runtime(self, root: Element) -> R:
        """What an entity holds, as the service shows it; what it does not show is zero."""
        values: dict[str, Any] = {field.name: 0 for field in fields(self.runtime) if field.default is MISSING}  # type: ignore[arg-type]  # they are dataclasses
        found = envelope.children(root)
        for name in found:
            part = self.parts.get(name)
            if isinstance(part, RuntimePart):
                values.update(part.read_runtime(found, name))
        return self.runtime(**values)


def _partitioning_first(item: tuple[str, Element]) -> bool:
    """Elements in their order, but for that one: it says which sizes there are."""
    return item[0] != "EnablePartitioning"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An entity that is yet to be so, as parts are written from."""

    description: object
