"""Where the sections of a message lie, found in one pass over the layouts that clients do send.

`Message` finds them in any layout and reads what is in them. A broker that only stores a message and passes it on needs
a few offsets, for a hundred thousand messages a second. What is unusual (sections out of order, descriptors written
long, no properties, no body) has no outline: then `Message` is asked.
"""

from __future__ import annotations

from typing import TypeAlias

Outline: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Offsets into a message: end of the header (0 where there is none), start and end of the message annotations (the same
where there are none), start and end of the properties, start of the body."""


def outline_of(payload: bytes) -> Outline | None:
    """The outline of a message that has properties with a message-id, and a body; None of any other."""
    at, end, last, body_at = 0, len(payload), 0x6F, 0
    header_end = annotations_at = annotations_end = properties_at = properties_end = 0
    try:
        while at < end:
            start, code, constructor = at, payload[at + 2], payload[at + 3]
            if payload[at] or payload[at + 1] != 0x53 or code < last or (code == last and code != 0x75):
                return None
            if constructor in (0xC0, 0xC1, 0xA0):  # list, map, binary: a size of one byte
                at += 5 + payload[at + 4]
            elif constructor in (0xD0, 0xD1, 0xB0):  # ... of four
                at += 8 + int.from_bytes(payload[at + 4 : at + 8], "big")
            elif constructor == 0x45:  # the empty list
                at += 4
            else:
                return None
            last = code
            if code >= 0x75:
                if not body_at and code < 0x78:
                    body_at = start
                elif code > 0x78 or 0x75 < code < 0x78 or not body_at:  # no section, a second body, or none
                    return None
            elif code == 0x73:
                properties_at, properties_end = start, at
                first = start + (12 if constructor == 0xD0 else 6)
                if first >= at or payload[first] == 0x40:  # no message-id
                    return None
            elif code == 0x70:
                header_end = at
            elif code == 0x72:
                annotations_at, annotations_end = start, at
    except IndexError:
        return None
    if at != end or not body_at or not properties_end:
        return None
    return header_end, annotations_at, annotations_end, properties_at, properties_end, body_at
