"""ATOM: the envelope that descriptions travel in, and the XML that both families of SDKs can read.

Owns: entries, feeds and namespaces. Knows nothing of what is inside a description.
Python's SDK reads by namespace. JavaScript's does not, and goes by the names as they are spelled: so nothing here has a
prefix, and namespaces are written as the plain attributes they are, which ElementTree would else replace by prefixes.
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


ATOM_NAMESPACE: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS_NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS_NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
XSI_NAMESPACE: Final = "http://www.w3.org/2001/XMLSchema-instance"
ENTRY_MEDIA_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_MEDIA_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
NEVER: Final = "0001-01-01T00:00:00Z"
"""The smallest date of .NET."""

# A character that XML cannot have would make the whole answer unreadable; one may come in the path of a request.
_INVALID_XML_CHARACTERS: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add_element(parent: Element, tag: str, text: str | None = None, **attributes: str) -> Element:
    """Append an element."""
    child = SubElement(parent, tag, attributes)
    if text is not None:
        child.text = _INVALID_XML_CHARACTERS.sub("\ufffd", text)
    return child


def to_bytes(root: Element) -> bytes:
    """As it is sent. Empty elements are closed at once, which all parsers take for the same."""
    return bytes(tostring(root, encoding="utf-8"))


def format_timestamp(time_ms: int) -> str:
    """A time of the wall clock; 0 is never."""
    if time_ms == 0:
        return NEVER
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> int:
    """The opposite; what is before 1970 is never."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(f"{text!r:.60} is no time: it is like 2024-05-06T07:08:09.123Z") from None
    return max(0, milliseconds_of(moment))


def new_description(tag: str) -> Element:
    """The root of a description, with the namespaces it needs."""
    return Element(tag, {"xmlns": SERVICE_BUS_NAMESPACE, "xmlns:i": XSI_NAMESPACE})


def make_entry(content: Element, *, url: str, title: str, author: str, created_ms: int, updated_ms: int) -> Element:
    """An envelope around one description. JavaScript reads the entity's name from the path of `url`."""
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
    """What a client sends: its envelope has nothing but the description."""
    root = Element("entry", {"xmlns": ATOM_NAMESPACE})
    add_element(root, "content", type="application/xml").append(content)
    return to_bytes(root)


def make_feed(entries: Sequence[bytes], *, url: str, title: str, updated_ms: int, next_url: str | None) -> bytes:
    """A page of entries. Python takes a second link, and only a second one, for the way to the next page."""
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
    """The description inside an entry that a client sent, if it is one of these."""
    root = parse_xml(body)
    if root.tag != f"{{{ATOM_NAMESPACE}}}entry":
        raise InvalidArgument(f"the body is {root.tag!r:.120}; it has to be an entry of {ATOM_NAMESPACE}")
    contents = root.findall(f"{{{ATOM_NAMESPACE}}}content")
    if len(contents) != 1 or len(contents[0]) != 1:
        raise InvalidArgument("the entry has to have one content element with one description in it")
    description = contents[0][0]
    if local_name(description) not in tags:
        wanted = f"a {' or a '.join(tags)} of {SERVICE_BUS_NAMESPACE}"
        raise InvalidArgument(f"the entry holds {description.tag!r:.120}; at this address it can be {wanted}")
    return description


@dataclass(frozen=True, slots=True)
class ResponseEntry:
    """One entry of an answer."""

    title: str
    description: Element


@dataclass(frozen=True, slots=True)
class AtomResponse:
    """What a service shows: one entry, or a page of them."""

    entries: list[ResponseEntry]
    is_feed: bool
    has_more: bool = False
    """The service names a next page."""


def read_response(body: bytes) -> AtomResponse:
    """An answer of a service. An entry without a description is nothing."""
    root = parse_xml(body)
    if root.tag == f"{{{ATOM_NAMESPACE}}}entry":
        return AtomResponse(_response_entries(root), is_feed=False)
    if root.tag != f"{{{ATOM_NAMESPACE}}}feed":
        raise InvalidArgument(f"the body is {root.tag!r:.120}; it has to be an entry or a feed of {ATOM_NAMESPACE}")
    entries = [one for entry in root.findall(f"{{{ATOM_NAMESPACE}}}entry") for one in _response_entries(entry)]
    links = [link.get("rel") for link in root.findall(f"{{{ATOM_NAMESPACE}}}link")]
    return AtomResponse(entries, is_feed=True, has_more="next" in links)


def _response_entries(entry: Element) -> list[ResponseEntry]:
    content = entry.find(f"{{{ATOM_NAMESPACE}}}content")
    if content is None or len(content) != 1:
        return []
    return [ResponseEntry(entry.findtext(f"{{{ATOM_NAMESPACE}}}title", ""), content[0])]


def local_name(element: Element) -> str:
    """The name of an element of Service Bus, or "" if it is of another namespace."""
    namespace, _, name = element.tag.rpartition("}")
    return name if namespace == f"{{{SERVICE_BUS_NAMESPACE}" else ""


def children_by_name(parent: Element) -> dict[str, Element]:
    """The elements of Service Bus in an element, by name. Those that are nil say nothing, and are left out."""
    found: dict[str, Element] = {}
    for child in _check_no_text(parent):
        name = local_name(child)
        if name in found:
            raise InvalidArgument(f"{local_name(parent)} has {name!r:.60} twice")
        if name and child.get(f"{{{XSI_NAMESPACE}}}nil", "") not in ("true", "1"):
            found[name] = child
    return found


def children_named(parent: Element, name: str) -> list[Element]:
    """All elements of one name in an element."""
    return [child for child in _check_no_text(parent) if local_name(child) == name]


def element_text(element: Element) -> str:
    """What stands in an element that has no others in it."""
    if len(element):
        raise InvalidArgument(f"{local_name(element)} has elements in it; it has to be text")
    return element.text or ""


def xsi_type(element: Element) -> str:
    """What the element says to be, without the prefix, which every client chooses; "" if it does not say."""
    return element.get(f"{{{XSI_NAMESPACE}}}type", "").rpartition(":")[2].strip()


def _check_no_text(parent: Element) -> Element:
    if any((words or "").strip() for words in (parent.text, *[child.tail for child in parent])):
        raise InvalidArgument(f"{local_name(parent)} has text in it; it has to be elements")
    return parent
