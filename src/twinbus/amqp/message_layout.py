"""Where the sections of a message lie, found in one pass over the layouts that clients do send.

`Message` finds them in any layout and reads what is in them. A broker that only stores a message and passes it on needs
a few offsets, for a hundred thousand messages a second. What is unusual (sections out of order, descriptors written
long, no properties, no body) has no outline: then `Message` is asked.
"""

from __future__ import annotations

from typing import Final, TypeAlias

MessageLayout: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Offsets into a message: end of the header (0 where there is none), start and end of the message annotations (the same
where there are none), start and end of the properties, start of the body."""


def uint32_at(payload: bytes, at: int) -> int:
    """The four bytes that begin there, as a number. Compiled, that takes a fraction of what `struct` does."""
    return payload[at] << 24 | payload[at + 1] << 16 | payload[at + 2] << 8 | payload[at + 3]


def layout_of(payload: bytes) -> MessageLayout | None:
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
                at += 8 + uint32_at(payload, at + 4)
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


def data_of(payload: bytes) -> list[bytes] | None:
    """The binaries of a body of data, with which a message ends; None of any other message."""
    at, end, last = 0, len(payload), 0x6F
    found: list[bytes] = []
    try:
        while at < end:
            code, constructor = payload[at + 2], payload[at + 3]
            if payload[at] or payload[at + 1] != 0x53 or code < last or (code == last and code != 0x75) or code > 0x75:
                return None
            if constructor in (0xC0, 0xC1, 0xA0):
                start = at + 5
                at = start + payload[at + 4]
            elif constructor in (0xD0, 0xD1, 0xB0):
                start = at + 8
                at = start + uint32_at(payload, at + 4)
            else:
                return None
            last = code
            if code == 0x75:
                if constructor not in (0xA0, 0xB0):
                    return None
                found.append(payload[start:at])
    except IndexError:
        return None
    return found if at == end else None


_WIDTHS: Final = bytes((0, 1, 2, 4, 8, 16))
"""Bytes behind constructors 0x4., 0x5., ... 0x9.; from 0xA. on a size says how many."""


def field_offsets(payload: bytes, at: int, count: int) -> list[int] | None:
    """Where the first `count` fields of a section that is a list begin, 0 for each that is null or not there.

    `at` is where the section begins, as an outline has it. None if it is written in a way that only `Message` reads.
    """
    offsets: list[int] = []
    try:
        at, there, end = _items_of(payload, at, 0xC0, 0xD0)
        for _ in range(min(count, there)):
            offsets.append(0 if payload[at] == 0x40 else at)
            at = _end_of_value(payload, at)
            if at == 0 or at > end:
                return None
    except IndexError:
        return None
    offsets.extend([0] * (count - len(offsets)))
    return offsets


def _items_of(payload: bytes, at: int, short: int, long: int) -> tuple[int, int, int]:
    """Of a list or map that is a section: where its items begin, how many they are, and where it ends.

    `short` and `long` are the two ways to write it. IndexError for any other, as for one that is cut off.
    """
    constructor = payload[at + 3]
    if constructor == short:
        return at + 6, payload[at + 5], at + 5 + payload[at + 4]
    if constructor != long:
        raise IndexError
    return at + 12, uint32_at(payload, at + 8), at + 8 + uint32_at(payload, at + 4)


def _end_of_value(payload: bytes, at: int) -> int:
    """Where the value ends that begins there; 0 for a described one."""
    kind = (payload[at] >> 4) - 4
    if kind < 0:
        return 0
    if kind < 6:
        return at + 1 + _WIDTHS[kind]
    if kind & 1:
        return at + 5 + uint32_at(payload, at + 1)
    return at + 2 + payload[at + 1]


def annotation_pairs(payload: bytes, at: int) -> list[tuple[bytes, int, int]] | None:
    """The annotations of a section that is a map: of each the name, and from where to where name and value lie.

    None if they are written in a way that only `Message` reads: with names that are no short symbols.
    """
    pairs: list[tuple[bytes, int, int]] = []
    try:
        at, there, end = _items_of(payload, at, 0xC1, 0xD1)
        for _ in range(there // 2):
            if payload[at] != 0xA3:
                return None
            value_at = at + 2 + payload[at + 1]
            value_end = _end_of_value(payload, value_at)
            if value_end == 0 or value_end > end:
                return None
            pairs.append((payload[at + 2 : value_at], at, value_end))
            at = value_end
    except IndexError:
        return None
    return pairs if at == end and not there % 2 else None


def is_text_map(payload: bytes, at: int) -> bool:
    """Whether a section is a map whose keys are plain short texts: then there is nothing wrong with it.

    Others may be right, too; only `Message` knows.
    """
    try:
        at, there, end = _items_of(payload, at, 0xC1, 0xD1)
        for _ in range(there // 2):
            value_at = at + 2 + payload[at + 1]
            if payload[at] != 0xA1 or not payload[at + 2 : value_at].isascii():
                return False
            if payload[value_at] == 0:  # described, as a duration is
                value_at = _end_of_value(payload, value_at + 1)
            at = _end_of_value(payload, value_at) if value_at else 0
            if at == 0 or at > end:
                return False
    except IndexError:
        return False
    return at == end and not there % 2


def timestamp_at(payload: bytes, at: int) -> int | None:
    """The timestamp that begins there; None if it is none."""
    if payload[at] != 0x83:
        return None
    return int.from_bytes(payload[at + 1 : at + 9], "big", signed=True)


def long_at(payload: bytes, at: int) -> int | None:
    """The long that begins there; None if it is none."""
    if payload[at] == 0x81:
        return int.from_bytes(payload[at + 1 : at + 9], "big", signed=True)
    return (payload[at + 1] ^ 0x80) - 0x80 if payload[at] == 0x55 else None


def text_at(payload: bytes, at: int) -> str | None:
    """The string that begins there; None if it is no string."""
    constructor = payload[at]
    if constructor == 0xA1:
        start, size = at + 2, payload[at + 1]
    elif constructor == 0xB1:
        start, size = at + 5, uint32_at(payload, at + 1)
    else:
        return None
    try:
        return payload[start : start + size].decode()
    except UnicodeDecodeError:
        return None
