"""The description of a namespace, to and from XML.

Owns: the names and the order of its elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.atom import envelope, kinds
from twinbus.model.info import NamespaceInfo

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

NAMESPACE_TAG: Final = "NamespaceInfo"
_NAMESPACE_TYPE: Final = "Messaging"


def write_namespace(info: NamespaceInfo) -> Element:
    """The description of a namespace."""
    root = envelope.new_description(NAMESPACE_TAG)
    envelope.add_element(root, "CreatedTime", envelope.format_timestamp(info.created_ms))
    envelope.add_element(root, "MessagingSKU", info.sku)
    envelope.add_element(root, "ModifiedTime", envelope.format_timestamp(info.modified_ms))
    envelope.add_element(root, "Name", info.name)
    envelope.add_element(root, "NamespaceType", _NAMESPACE_TYPE)
    return root


def read_namespace(root: Element) -> NamespaceInfo:
    """A namespace as it shows itself."""
    found = {name: envelope.element_text(element).strip() for name, element in envelope.children_by_name(root).items()}
    units = found.get("MessagingUnits")
    return NamespaceInfo(
        name=found.get("Name", ""),
        created_ms=envelope.parse_timestamp(found.get("CreatedTime", envelope.NEVER)),
        modified_ms=envelope.parse_timestamp(found.get("ModifiedTime", envelope.NEVER)),
        sku=found.get("MessagingSKU", ""),
        messaging_units=kinds.NUMBER.read(units) if units else None,
        alias=found.get("Alias") or None,
    )
