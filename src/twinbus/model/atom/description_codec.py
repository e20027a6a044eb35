"""Codec for entity descriptions: how each kind of entity is written as XML.

Owns the tables of elements in a description, in writing order. The model validates values; an error names the element
and the value. Elements are read in any order, and unknown or read-only elements are ignored: clients send back
descriptions with counts and dates, and newer SDKs send elements that did not exist when this code was written.
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
"""Forwarding fields of a description, and the HTTP header with a token for each destination."""
KEPT_ON_UPDATE: Final = (
    "requires_duplicate_detection",
    "requires_session",
    "enable_partitioning",
    "authorization_rules",
)
"""Fields that keep their value when an update omits them. Some of these fields are fixed at creation. A client whose
api-version predates partitioning never receives `enable_partitioning`, so it cannot send this setting back.
Authorization rules that an update omits would otherwise be deleted."""
_RELATED_FIELDS: Final = ("enable_partitioning",)
"""Fields that the validity of other fields depends on. Partitioning allows more sizes, for example."""


@dataclass(frozen=True, slots=True)
class DescriptionCodec(Generic[D, R]):
    """Codec for the descriptions of one kind of entity."""

    tag: str
    description_type: type[D]
    runtime_type: type[R]
    elements: Mapping[str, DescriptionElement]
    """Elements by name, in the order of Azure's contract."""

    def read(self, root: Element, current: D | None = None, *, now_ms: int = 0) -> D:
        """Read the description in a client's request; `current` is the entity's description if this is an update.

        Omitted settings get their defaults, so that a client can remove a ForwardTo; exceptions are in
        `KEPT_ON_UPDATE`.
        """
        values = {
            field: getattr(current, field)
            for field in KEPT_ON_UPDATE
            if current is not None and hasattr(current, field)
        }
        children = envelope.children_by_name(root)
        if AUTHORIZATION_RULES not in self.elements and len(children.get(AUTHORIZATION_RULES, ())):
            raise InvalidArgument(
                f"{AUTHORIZATION_RULES}: only queues and topics have keys of their own, not a {self.tag}"
            )
        for name, element in sorted(children.items(), key=_partitioning_first):
            codec = self.elements.get(name)
            if isinstance(codec, SettableElement):
                related = {field: values[field] for field in _RELATED_FIELDS if field in values}
                values[codec.field] = self._read_value(name, codec, element, current, now_ms, related)
        return self.description_type(**values)

    def _read_value(
        self,
        name: str,
        codec: SettableElement,
        element: Element,
        current: D | None,
        now_ms: int,
        related: dict[str, Any],
    ) -> Any:  # noqa: ANN401  # type of the field
        """Read one value and validate it separately, so that an error can name its element."""
        try:
            value = codec.read(element, current, now_ms)
            self.description_type(**related | {codec.field: value})
        except InvalidArgument as error:
            shown_value = (
                f" is {element.text or ''!r:.80}" if isinstance(codec, SettingElement) else ""
            )  # other elements may contain secrets
            raise type(error)(f"{name}{shown_value}: {error}") from None
        return value

    def write(self, info: Any, context: WriteContext) -> Element:  # noqa: ANN401  # info of any entity
        """Write the current description of an entity for a response."""
        root = envelope.new_description(self.tag)
        for name, codec in self.elements.items():
            if context.api_version >= codec.since_version:
                codec.write(root, name, info, context)
        return root

    # --- client side --------------------------------------------------------------------------------------------------

    def write_request(self, description: D, context: WriteContext, *, is_update: bool) -> Element:
        """Write the description for a client's request.

        Default values are omitted, because the service has the same defaults, and a namespace in another tier would
        refuse settings that it does not support. An update always contains the fields in `KEPT_ON_UPDATE`.
        """
        root = envelope.new_description(self.tag)
        requested, defaults = _RequestedEntity(description), self.description_type()
        for name, codec in self.elements.items():
            if isinstance(codec, SettableElement):
                is_required = is_update and codec.field in KEPT_ON_UPDATE
                if is_required or getattr(description, codec.field) != getattr(defaults, codec.field):
                    codec.write(root, name, requested, context)
        return root

    def read_response(self, root: Element) -> D:
        """Read the settings of an entity from a service's response."""
        values = {
            codec.field: codec.read_response(element)
            for name, element in envelope.children_by_name(root).items()
            if isinstance(codec := self.elements.get(name), SettableElement)
        }
        return build_unchecked(self.description_type, values)

    def read_runtime(self, root: Element) -> R:
        """Read the runtime information of an entity from a service's response; absent values are zero."""
        values: dict[str, Any] = {field.name: 0 for field in fields(self.runtime_type) if field.default is MISSING}  # type: ignore[arg-type]  # runtime types are dataclasses
        children = envelope.children_by_name(root)
        for name in children:
            codec = self.elements.get(name)
            if isinstance(codec, RuntimeElement):
                values.update(codec.read_runtime(children, name))
        return self.runtime_type(**values)


def _partitioning_first(item: tuple[str, Element]) -> bool:
    """Sort key that puts EnablePartitioning first, because the valid sizes depend on it."""
    return item[0] != "EnablePartitioning"


@dataclass(frozen=True, slots=True)
class _RequestedEntity:
    """Stand-in for an `EntityInfo`, with only a description, so that settable elements can write a client's request."""

    description: object
