"""Offsets of the sections in a message, found in one pass for the layouts that clients commonly send.

`Message` parses any layout and decodes its values. A broker that only stores and forwards messages needs just a few
offsets of each message, but for a hundred thousand messages per second. The functions in this module return None (or
False) for an unusual layout, such as sections out of order, long descriptors, no properties, or no body. The caller
then falls back to `Message`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

MessageLayout: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Offsets into a message: the end of the header (0 if there is no header), the start and end of the message annotations
(equal if there are none), the start and end of the properties, and the start of the body."""


def uint32_at(payload: bytes, at: int) -> int:
    """Return the big-endian 32-bit number at offset `at`. When compiled, this function is much faster than `struct`."""
    return payload[at] << 24 | payload[at + 1] << 16 | payload[at + 2] << 8 | payload[at + 3]


def layout_of(payload: bytes) -> MessageLayout | None:
    """Return the layout of a message that has a message-id and a body, or None for any other message."""
    at, end, last, body_at = 0, len(payload), 0x6F, 0
    header_end = annotations_at = annotations_end = properties_at = properties_end = 0
    try:
        while at < end:
            start, code, constructor = at, payload[at + 2], payload[at + 3]
            if payload[at] or payload[at + 1] != 0x53 or code < last or (code == last and code != 0x75):
                return None
            if constructor in (0xC0, 0xC1, 0xA0):  # list, map, binary with a 1-byte size
                at += 5 + payload[at + 4]
            elif constructor in (0xD0, 0xD1, 0xB0):  # list, map, binary with a 4-byte size
                at += 8 + uint32_at(payload, at + 4)
            elif constructor == 0x45:  # the empty list
                at += 4
            else:
                return None
            last = code
            if code >= 0x75:
                if not body_at and code < 0x78:
                    body_at = start
                elif (
                    code > 0x78 or 0x75 < code < 0x78 or not body_at
                ):  # not a section, a second body, or a footer without a body
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
    """Return the binaries of a message that ends with data sections, or None for any other message."""
    at, end, last = 0, len(payload), 0x6F
    binaries: list[bytes] = []
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
                binaries.append(payload[start:at])
    except IndexError:
        return None
    return binaries if at == end else None


_WIDTHS: Final = bytes((0, 1, 2, 4, 8, 16))
"""Value widths in bytes, by the upper four bits of the constructor (4 to 9). A size follows higher constructors."""


def field_offsets(payload: bytes, at: int, count: int) -> list[int] | None:
    """Return the offsets of the first `count` fields of the list section at `at`, with 0 for each null or absent field.

    Return None if the section has an encoding that only `Message` reads.
    """
    offsets: list[int] = []
    try:
        at, item_count, end = _items_of(payload, at, 0xC0, 0xD0)
        for _ in range(min(count, item_count)):
            offsets.append(0 if payload[at] == 0x40 else at)
            at = _end_of_value(payload, at)
            if at == 0 or at > end:
                return None
    except IndexError:
        return None
    offsets.extend([0] * (count - len(offsets)))
    return offsets


def _items_of(payload: bytes, at: int, short: int, long: int) -> tuple[int, int, int]:
    """Return the offset of the first item, the item count and the end of a section that is a list or map.

    `short` and `long` are the constructors of the section's two encodings. Raise IndexError for any other constructor,
    and for a section that is cut off.
    """
    constructor = payload[at + 3]
    if constructor == short:
        return at + 6, payload[at + 5], at + 5 + payload[at + 4]
    if constructor != long:
        raise IndexError
    return at + 12, uint32_at(payload, at + 8), at + 8 + uint32_at(payload, at + 4)


def _end_of_value(payload: bytes, at: int) -> int:
    """Return the end of the value at offset `at`, or 0 if the value is described."""
    kind = (payload[at] >> 4) - 4
    if kind < 0:
        return 0
    if kind < 6:
        return at + 1 + _WIDTHS[kind]
    if kind & 1:
        return at + 5 + uint32_at(payload, at + 1)
    return at + 2 + payload[at + 1]


def annotation_pairs(payload: bytes, at: int) -> list[tuple[bytes, int, int]] | None:
    """Return the annotations of the map section at `at` as (name, start of the encoded name, end of the value).

    Return None if the section has an encoding that only `Message` reads, such as names that are not short symbols.
    """
    pairs: list[tuple[bytes, int, int]] = []
    try:
        at, item_count, end = _items_of(payload, at, 0xC1, 0xD1)
        for _ in range(item_count // 2):
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
    return pairs if at == end and not item_count % 2 else None


def is_text_map(payload: bytes, at: int) -> bool:
    """Return whether the section at `at` is a well-formed map whose keys are short ASCII strings.

    False does not mean that the section is invalid: only `Message` can tell.
    """
    try:
        at, item_count, end = _items_of(payload, at, 0xC1, 0xD1)
        for _ in range(item_count // 2):
            value_at = at + 2 + payload[at + 1]
            if payload[at] != 0xA1 or not payload[at + 2 : value_at].isascii():
                return False
            if payload[value_at] == 0:  # a described value, such as a duration
                value_at = _end_of_value(payload, value_at + 1)
            at = _end_of_value(payload, value_at) if value_at else 0
            if at == 0 or at > end:
                return False
    except IndexError:
        return False
    return at == end and not item_count % 2


def timestamp_at(payload: bytes, at: int) -> int | None:
    """Return the timestamp at offset `at`, or None if the value there is not a timestamp."""
    if payload[at] != 0x83:
        return None
    return int.from_bytes(payload[at + 1 : at + 9], "big", signed=True)


def long_at(payload: bytes, at: int) -> int | None:
    """Return the long at offset `at`, or None if the value there is not a long."""
    if payload[at] == 0x81:
        return int.from_bytes(payload[at + 1 : at + 9], "big", signed=True)
    return (payload[at + 1] ^ 0x80) - 0x80 if payload[at] == 0x55 else None


def text_at(payload: bytes, at: int) -> str | None:
    """Return the string at offset `at`, or None if the value there is not a valid string."""
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
