"""ATOM envelopes for descriptions, and XML that all Azure SDKs can read.

Owns entries, feeds and XML namespaces. Must not know the content of descriptions. The Python SDK reads elements by XML
namespace. The JavaScript SDK reads elements by tag name as written. So elements are written without prefixes, and
namespaces are written as plain attributes, because ElementTree would otherwise generate prefixes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, ParseError, SubElement, TreeBuilder, tostring

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from twinbus.model.errors import InvalidArgument
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH: Final = 32
"""Maximum nesting of elements; the deepest description has eight levels."""


def parse_xml(body: bytes) -> Element:
    """Parse a document and return its root element, or raise InvalidArgument."""
    parser = DefusedXMLParser(target=_DepthLimitedBuilder(), forbid_dtd=True)
    try:
        parser.feed(body)
        root: Element = parser.close()
    except DefusedXmlException:
        raise InvalidArgument("the body has a document type or entities, which are not supported") from None
    except (ParseError, ValueError, LookupError) as error:  # ValueError and LookupError come from invalid encodings
        raise InvalidArgument(f"the body is not valid XML: {error}") from None
    return root


class _DepthLimitedBuilder(TreeBuilder):
    """Tree builder with a depth limit, because walking or freeing a tree recurses as deep as the tree."""

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


ATOM_NAMESPACE: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS_NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS_NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
XSI_NAMESPACE: Final = "http://www.w3.org/2001/XMLSchema-instance"
ENTRY_MEDIA_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_MEDIA_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
NEVER: Final = "0001-01-01T00:00:00Z"
""".NET's smallest date, which stands for "never"."""

# A character that XML does not allow would make the whole response unreadable; a request's path may contain one.
_INVALID_XML_CHARACTERS: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add_element(parent: Element, tag: str, text: str | None = None, **attributes: str) -> Element:
    """Append a child element and return it."""
    child = SubElement(parent, tag, attributes)
    if text is not None:
        child.text = _INVALID_XML_CHARACTERS.sub("\ufffd", text)
    return child


def to_bytes(root: Element) -> bytes:
    """Serialize a document. Empty elements are self-closing, which all parsers accept."""
    return bytes(tostring(root, encoding="utf-8"))


def format_timestamp(time_ms: int) -> str:
    """Format a wall-clock time in milliseconds; 0 means never."""
    if time_ms == 0:
        return NEVER
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> int:
    """Parse a timestamp to milliseconds since 1970; times before 1970 become 0 (never)."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(f"{text!r:.60} is not a timestamp: use a format like 2024-05-06T07:08:09.123Z") from None
    return max(0, milliseconds_of(moment))


def new_description(tag: str) -> Element:
    """Create the root element of a description, with its namespace declarations."""
    return Element(tag, {"xmlns": SERVICE_BUS_NAMESPACE, "xmlns:i": XSI_NAMESPACE})


def make_entry(content: Element, *, url: str, title: str, author: str, created_ms: int, updated_ms: int) -> Element:
    """Wrap a description in an entry. The JavaScript SDK reads the entity's name from the path of `url`."""
    root = Element("entry", {"xmlns": ATOM_NAMESPACE})
    add_element(root, "id", url)
    add_element(root, "title", title, type="text")
    add_element(root, "published", format_timestamp(created_ms))
    add_element(root, "updated", format_timestamp(updated_ms))
    add_element(add_element(root, "author"), "name", author)
    add_element(root, "link", rel="self", href=url)
    add_element(root, "content", type="application/xml").append(content)
    return root


def make_request(content: Element) -> bytes:
    """Return the body of a client's request: an entry with only the description."""
    root = Element("entry", {"xmlns": ATOM_NAMESPACE})
    add_element(root, "content", type="application/xml").append(content)
    return to_bytes(root)


def make_feed(entries: Sequence[bytes], *, url: str, title: str, updated_ms: int, next_url: str | None) -> bytes:
    """Return a page of entries. The Python SDK takes the second link, if there is one, as the next page."""
    root = Element("feed", {"xmlns": ATOM_NAMESPACE})
    add_element(root, "title", title, type="text")
    add_element(root, "id", url)
    add_element(root, "updated", format_timestamp(updated_ms))
    add_element(root, "link", rel="self", href=url)
    if next_url is not None:
        add_element(root, "link", rel="next", href=next_url)
    end = b"</feed>"
    return b"".join([to_bytes(root).removesuffix(end), *entries, end])


# --- reading ----------------------------------------------------------------------------------------------------------


def read_description(body: bytes, *tags: str) -> Element:
    """Return the description in a client's entry; raise InvalidArgument if its tag is not one of `tags`."""
    root = parse_xml(body)
    if root.tag != f"{{{ATOM_NAMESPACE}}}entry":
        raise InvalidArgument(f"the body is {root.tag!r:.120}; it has to be an entry of {ATOM_NAMESPACE}")
    contents = root.findall(f"{{{ATOM_NAMESPACE}}}content")
    if len(contents) != 1 or len(contents[0]) != 1:
        raise InvalidArgument("the entry has to have one content element with one description in it")
    description = contents[0][0]
    if local_name(description) not in tags:
        expected = f"a {' or a '.join(tags)} of {SERVICE_BUS_NAMESPACE}"
        raise InvalidArgument(f"the entry holds {description.tag!r:.120}; at this address it can be {expected}")
    return description


@dataclass(frozen=True, slots=True)
class ResponseEntry:
    """Entry in a response."""

    title: str
    description: Element


@dataclass(frozen=True, slots=True)
class AtomResponse:
    """Response from a service: a single entry, or a page of entries."""

    entries: list[ResponseEntry]
    is_feed: bool
    has_more: bool = False
    """True if the service names a next page."""


def read_response(body: bytes) -> AtomResponse:
    """Parse a response from a service. Entries without a description are skipped."""
    root = parse_xml(body)
    if root.tag == f"{{{ATOM_NAMESPACE}}}entry":
        return AtomResponse(_response_entries(root), is_feed=False)
    if root.tag != f"{{{ATOM_NAMESPACE}}}feed":
        raise InvalidArgument(f"the body is {root.tag!r:.120}; it has to be an entry or a feed of {ATOM_NAMESPACE}")
    entries = [
        response_entry
        for entry in root.findall(f"{{{ATOM_NAMESPACE}}}entry")
        for response_entry in _response_entries(entry)
    ]
    links = [link.get("rel") for link in root.findall(f"{{{ATOM_NAMESPACE}}}link")]
    return AtomResponse(entries, is_feed=True, has_more="next" in links)


def _response_entries(entry: Element) -> list[ResponseEntry]:
    content = entry.find(f"{{{ATOM_NAMESPACE}}}content")
    if content is None or len(content) != 1:
        return []
    return [ResponseEntry(entry.findtext(f"{{{ATOM_NAMESPACE}}}title", ""), content[0])]


def local_name(element: Element) -> str:
    """Return the local name of an element in the Service Bus namespace, or "" for other namespaces."""
    namespace, _, name = element.tag.rpartition("}")
    return name if namespace == f"{{{SERVICE_BUS_NAMESPACE}" else ""


def children_by_name(parent: Element) -> dict[str, Element]:
    """Return the Service Bus child elements by name, without nil elements."""
    children: dict[str, Element] = {}
    for child in _check_no_text(parent):
        name = local_name(child)
        if name in children:
            raise InvalidArgument(f"{local_name(parent)} has {name!r:.60} twice")
        if name and child.get(f"{{{XSI_NAMESPACE}}}nil", "") not in ("true", "1"):
            children[name] = child
    return children


def children_named(parent: Element, name: str) -> list[Element]:
    """Return all child elements with a name."""
    return [child for child in _check_no_text(parent) if local_name(child) == name]


def element_text(element: Element) -> str:
    """Return the text of an element without children; raise InvalidArgument if it has children."""
    if len(element):
        raise InvalidArgument(f"{local_name(element)} has elements in it; it has to be text")
    return element.text or ""


def xsi_type(element: Element) -> str:
    """Return the xsi:type of an element without its prefix, which clients choose freely, or "" if it has none."""
    return element.get(f"{{{XSI_NAMESPACE}}}type", "").rpartition(":")[2].strip()


def _check_no_text(parent: Element) -> Element:
    if any((text or "").strip() for text in (parent.text, *[child.tail for child in parent])):
        raise InvalidArgument(f"{local_name(parent)} has text in it; it has to be elements")
    return parent
