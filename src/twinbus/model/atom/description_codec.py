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
from twinbus.model.atom.elements import RuntimeElement, SettableElement, SettingElement, build_unchecked
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.elements import DescriptionElement
    from twinbus.model.atom.value_formats import WriteContext

D = TypeVar("D")
R = TypeVar("R")

AUTHORIZATION_RULES: Final = "AuthorizationRules"
FORWARD_AUTHORIZATION_HEADERS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_to": "ServiceBusDlqSupplementaryAuthorization",
}
"""What a description forwards to, and the header with a token for it."""
KEPT_ON_UPDATE: Final = (
    "requires_duplicate_detection",
    "requires_session",
    "enable_partitioning",
    "authorization_rules",
)
"""What stays as it is when an update does not name it: what is fixed at creation, since a client of an api-version that
does not know of partitions cannot repeat what it was not shown; and keys, which are gone for good when they are gone.
"""
_RELATED_FIELDS: Final = ("enable_partitioning",)
"""What a value depends on: partitioned entities may be described by the size that they are shown with."""


@dataclass(frozen=True, slots=True)
class DescriptionCodec(Generic[D, R]):
    """How the descriptions of one kind of entity are written."""

    tag: str
    description_type: type[D]
    runtime_type: type[R]
    elements: Mapping[str, DescriptionElement]
    """By the names of their elements, in the order of the contract."""

    def read(self, root: Element, current: D | None = None, *, now_ms: int = 0) -> D:
        """The description that a client sent; `current` is the entity's, when it is updated.

        What the client leaves out has its default, so that a ForwardTo can be taken away; see `KEPT`.
        """
        values = {
            field: getattr(current, field)
            for field in KEPT_ON_UPDATE
            if current is not None and hasattr(current, field)
        }
        found = envelope.children_by_name(root)
        if AUTHORIZATION_RULES not in self.elements and len(found.get(AUTHORIZATION_RULES, ())):
            raise InvalidArgument(
                f"{AUTHORIZATION_RULES}: only queues and topics have keys of their own, not a {self.tag}"
            )
        for name, element in sorted(found.items(), key=_partitioning_first):
            part = self.elements.get(name)
            if isinstance(part, SettableElement):
                beside = {field: values[field] for field in _RELATED_FIELDS if field in values}
                values[part.field] = self._read_value(name, part, element, current, now_ms, beside)
        return self.description_type(**values)

    def _read_value(
        self,
        name: str,
        codec: SettableElement,
        element: Element,
        current: D | None,
        now_ms: int,
        related: dict[str, Any],
    ) -> Any:  # noqa: ANN401  # of the field's type
        """One value, held against the model alone, so that an error can say which element it was."""
        try:
            value = codec.read(element, current, now_ms)
            self.description_type(**related | {codec.field: value})
        except InvalidArgument as error:
            said = (
                f" is {element.text or ''!r:.80}" if isinstance(codec, SettingElement) else ""
            )  # others may be secret
            raise type(error)(f"{name}{said}: {error}") from None
        return value

    def write(self, info: Any, context: WriteContext) -> Element:  # noqa: ANN401  # of one of the entities
        """The description of an entity as it is now."""
        root = envelope.new_description(self.tag)
        for name, part in self.elements.items():
            if context.api_version >= part.since_version:
                part.write(root, name, info, context)
        return root

    # --- the other side -----------------------------------------------------------------------------------------------

    def write_request(self, description: D, context: WriteContext, *, is_update: bool) -> Element:
        """The description that a client asks for.

        What has its default is left out, and the service has it so as well: a namespace of another tier would refuse to
        be told of what it does not have. What an update would keep (see `KEPT`) is always said in one.
        """
        root = envelope.new_description(self.tag)
        wanted, plain = _RequestedEntity(description), self.description_type()
        for name, part in self.elements.items():
            if isinstance(part, SettableElement):
                is_said = is_update and part.field in KEPT_ON_UPDATE
                if is_said or getattr(description, part.field) != getattr(plain, part.field):
                    part.write(root, name, wanted, context)
        return root

    def read_response(self, root: Element) -> D:
        """What an entity is told to be, as the service shows it."""
        values = {
            part.field: part.read_response(element)
            for name, element in envelope.children_by_name(root).items()
            if isinstance(part := self.elements.get(name), SettableElement)
        }
        return build_unchecked(self.description_type, values)

    def read_runtime(self, root: Element) -> R:
        """What an entity holds, as the service shows it; what it does not show is zero."""
        values: dict[str, Any] = {field.name: 0 for field in fields(self.runtime_type) if field.default is MISSING}  # type: ignore[arg-type]  # they are dataclasses
        found = envelope.children_by_name(root)
        for name in found:
            part = self.elements.get(name)
            if isinstance(part, RuntimeElement):
                values.update(part.read_runtime(found, name))
        return self.runtime_type(**values)


def _partitioning_first(item: tuple[str, Element]) -> bool:
    """Elements in their order, but for that one: it says which sizes there are."""
    return item[0] != "EnablePartitioning"


@dataclass(frozen=True, slots=True)
class _RequestedEntity:
    """An entity that is yet to be so, as parts are written from."""

    description: object
