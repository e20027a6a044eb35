"""ATOM entries as clients write them, and the element names of a description in a reply."""

from __future__ import annotations

import re

BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"


def atom_entry(description: str, elements: str = "") -> str:
    """A description in an entry, as the JavaScript SDK writes it."""
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{description} xmlns="{BUS}" xmlns:i="{INSTANCE}">{elements}</{description}></content></entry>'
    )


def rule_entry(elements: str) -> str:
    return atom_entry("RuleDescription", elements)


def element_names(text: str, description: str) -> list[str]:
    """The names of a description's elements, in order, without nested elements."""
    inside = text[text.index(f"<{description}") : text.index(f"</{description}>")]
    inside = re.sub("<(AuthorizationRules|CountDetails|Filter|Action)[ >].*?</\\1>", r"<\1 />", inside)
    return re.findall(r"<(\w+)[ >/]", inside)[1:]
