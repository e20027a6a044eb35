"""Reading XML from strangers.

Owns: what is refused before anyone looks at it: document types, entities, and elements inside each other without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_DEPTH: Final = 32
"""Elements inside each other; the deepest description has eight."""


def parse_xml(body: bytes) -> Element:
    """The root; InvalidArgument says why there is none."""
    parser = DefusedXMLParser(target=_DepthLimitedBuilder(), forbid_dtd=True)
    try:
        parser.feed(body)
        root: Element = parser.close()
    except DefusedXmlException:
        raise InvalidArgument("the body has a document type or entities, which are not read here") from None
    except (ParseError, ValueError, LookupError) as error:  # the last two are of encodings that are none
        raise InvalidArgument(f"the body is no XML: {error}") from None
    return root


class _DepthLimitedBuilder(TreeBuilder):
    """Makes no tree that is deeper than any description: to walk through one, or to free it, is to go as deep."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidArgument(f"the body has elements more than {MAX_DEPTH} deep")
        return super().start(tag, attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)
