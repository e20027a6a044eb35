"""The description of a namespace, to and from XML.

Owns: the names and the order of its elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.atom import envelope, kinds
from twinbus.model.info import NamespaceInfo

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

TAG: Final = "NamespaceInfo"
_TYPE: Final = "Messaging"


def write(info: NamespaceInfo) -> Element:
    """The description of a namespace."""
    root = envelope.new_description(TAG)
    envelope.add(root, "CreatedTime", envelope.timestamp(info.created_ms))
    envelope.add(root, "MessagingSKU", info.sku)
    envelope.add(root, "ModifiedTime", envelope.timestamp(info.modified_ms))
    envelope.add(root, "Name", info.name)
    envelope.add(root, "NamespaceType", _TYPE)
    return root


def read_shown(root: Element) -> NamespaceInfo:
    """A namespace as it shows itself."""
    found = {name: envelope.text(element).strip() for name, element in envelope.children(root).items()}
    units = found.get("MessagingUnits")
    return NamespaceInfo(
        name=found.get("Name", ""),
        created_ms=envelope.moment_ms(found.get("CreatedTime", envelope.NEVER)),
        modified_ms=envelope.moment_ms(found.get("ModifiedTime", envelope.NEVER)),
        sku=found.get("MessagingSKU", ""),
        messaging_units=kinds.NUMBER.read(units) if units else None,
        alias=found.get("Alias") or None,
    )
