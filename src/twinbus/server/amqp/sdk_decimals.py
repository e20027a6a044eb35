"""Decimals for the Azure SDK for Python, whose decoder cannot read what its encoder writes.

The SDK encodes a `Decimal` correctly as AMQP's decimal128: 14 bits of exponent, 113 bits of coefficient. Its decoder
reads another layout: it shifts the upper seven bits of the exponent two places too far, and takes the last twelve bytes
for three decimal numbers that it concatenates. The SDK therefore cannot read its own decimals: an exponent out of range
is an error, and the message is never received.

Messages are stored as they were sent, so that every other client reads the right number. Only on connections from this
SDK, each decimal that the decoder cannot read is rewritten on delivery in the layout that the decoder reads. A decimal
that does not fit that layout (more than 25 to 30 digits, or an exponent far from 0) becomes a string with the same
digits. Messages with more than `MAX_ENTRIES` properties and annotations are delivered unchanged: a sender must not be
able to keep the server busy with rewriting deliveries to other clients.

Owns: the SDK's layout, and how to recognise a connection from the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec import decimals
from twinbus.amqp.codec.encode import write
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

MAX_ENTRIES: Final = 100
"""The maximum number of properties and annotations in a message that is rewritten."""
_SDK_PRODUCT: Final = "azsdk-python-servicebus"
_DECIMAL128: Final = 0x94
_BIAS: Final = decimals.DECIMAL128.bias
_MAX_EXPONENT: Final = 6111
_SPECIAL: Final = 0x60
"""Bits of the first byte that are set in infinities and NaNs, which the SDK can read."""
_UNSUPPORTED_EXPONENT_BITS: Final = 0x180
"""Bits of an exponent that the SDK's layout cannot represent."""
_MAX_WORD: Final = 2**32 - 1
_MIN_WORD_DIGITS: Final = 8
_MAX_WORD_DIGITS: Final = 10
_MAX_DIGITS: Final = 3 * _MAX_WORD_DIGITS
_ZERO_SHIFTS: Final = sorted(range(-_MAX_DIGITS, _MAX_DIGITS), key=abs)
_MAP_SECTIONS: Final = (Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS, Section.APPLICATION_PROPERTIES)
_MAP32: Final = 0xD1


def is_python_sdk(properties: Mapping[str, object] | None) -> bool:
    """Return whether the properties of a connection's open identify the SDK for Python."""
    return str((properties or {}).get("product", "")).startswith(_SDK_PRODUCT)


def rewrite_decimals(payload: bytes) -> bytes:
    """Return a message in which the SDK can read all decimals in properties and annotations."""
    if _DECIMAL128 not in payload:
        return payload
    try:
        message = Message(payload)
        if sum([message.entry_count(section) for section in _MAP_SECTIONS]) > MAX_ENTRIES:
            return payload
        rewritten = {section: _rewrite_section(message, section) for section in _MAP_SECTIONS}
    except DecodeError:  # the receiver may be able to decode the message
        return payload
    if not any(rewritten.values()):
        return payload
    body = message.body_section
    order = (
        Section.HEADER,
        *_MAP_SECTIONS[:2],
        Section.PROPERTIES,
        Section.APPLICATION_PROPERTIES,
        body,
        Section.FOOTER,
    )
    return b"".join([rewritten.get(each) or message.raw(each) for each in order if each is not None])


def _rewrite_section(message: Message, section: Section) -> bytes:
    """Return the rewritten section; empty if no decimal needs to be rewritten."""
    pairs, is_changed = [], False
    for _, value_at, raw in message.entries(section):
        pair = raw
        if raw[value_at] == _DECIMAL128 and not _sdk_can_read(raw[value_at + 1 :]):
            pair, is_changed = (
                raw[:value_at] + _encode_for_sdk(decimals.unpack(raw[value_at + 1 :], decimals.DECIMAL128)),
                True,
            )
        pairs.append(pair)
    if not is_changed:
        return b""
    content = b"".join(pairs)
    head = bytes((0x00, 0x53, section, _MAP32)) + (len(content) + 4).to_bytes(4, "big")
    return head + (2 * len(pairs)).to_bytes(4, "big") + content


def _sdk_can_read(data: bytes) -> bool:
    if data[0] & _SPECIAL == _SPECIAL:
        return True
    return (((data[0] & 0x7F) << 9) | data[1] >> 1) - _BIAS <= _MAX_EXPONENT


def _encode_for_sdk(value: Decimal) -> bytes:
    packed = pack_for_sdk(value)
    if packed is not None:
        return bytes((_DECIMAL128,)) + packed
    out = bytearray()
    write(out, str(value))
    return bytes(out)


def pack_for_sdk(value: Decimal) -> bytes | None:
    """Return a number in the layout that the SDK reads; None if it cannot be represented."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    spare = len(text) - len(text.rstrip("0")) if text else _MAX_DIGITS
    room = _MAX_DIGITS - len(text)
    for zeros in _ZERO_SHIFTS:  # the same number with more or fewer trailing zeros
        biased = exponent - zeros + _BIAS
        if biased < 0 or biased & _UNSUPPORTED_EXPONENT_BITS or not -spare <= zeros <= room:
            continue
        words = split_into_words(text[:zeros] if zeros < 0 else text + "0" * zeros if text else "")
        if words is not None:
            head = bytes((sign << 7 | biased >> 9, (biased & 0x7F) << 1, 0, 0))
            return head + b"".join([word.to_bytes(4, "big") for word in words])
    return None


def split_into_words(digits: str) -> list[int] | None:
    """Return three numbers that the SDK concatenates into these digits; None if the digits do not fit.

    The SDK writes each number with at least eight digits.
    """
    words: list[int] = []
    for _ in range(2):
        size = next(
            (size for size in range(_MAX_WORD_DIGITS, _MIN_WORD_DIGITS, -1) if _fits_in_word(digits[-size:], size)), 0
        )
        size = size or _MIN_WORD_DIGITS
        words.insert(0, int(digits[-size:] or "0"))
        digits = digits[:-size]
    if len(digits) > _MAX_WORD_DIGITS or int(digits or "0") > _MAX_WORD:
        return None
    return [int(digits or "0"), *words]


def _fits_in_word(digits: str, size: int) -> bool:
    return len(digits) == size and digits[0] != "0" and int(digits) <= _MAX_WORD
