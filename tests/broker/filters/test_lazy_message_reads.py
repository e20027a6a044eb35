"""Filters decode only the parts of a message that they name."""

from __future__ import annotations

from struct import pack

import pytest

from tests.broker.filters.messages import matches, stored, stored_bare
from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section, build, data
from twinbus.amqp.types import Described, Symbol, ULong
from twinbus.broker.filters import message_view
from twinbus.broker.filters.message_view import MessageView

GARBAGE = b"\xa1\x02\xff\xfe"
"""A string that is not UTF-8: decoding it raises an error."""


def with_garbage() -> bytes:
    """Return a message in which only the label, the colour and the size can be decoded."""
    fields = GARBAGE + b"\x40" + GARBAGE + encode("orders") + GARBAGE * 3
    properties = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 7)) + fields
    pairs = encode("bad") + GARBAGE + encode("color") + encode("red") + GARBAGE + GARBAGE + encode("size") + encode(7)
    user = b"\x00\x53\x74\xd1" + pack(">II", len(pairs) + 4, 8) + pairs
    return stored_bare(properties + user + b"\x00\x53\x77" + GARBAGE)


def test_values_that_are_not_named_may_be_garbage() -> None:
    with pytest.raises(DecodeError):
        decode(GARBAGE)
    assert matches("sys.Label = 'orders' AND color = 'red' AND size > 6 AND missing IS NULL", with_garbage())


def test_an_undecodable_value_exists_and_equals_nothing() -> None:
    assert matches("EXISTS(bad) AND bad IS NOT NULL", with_garbage())
    assert not matches("bad = 'x' OR bad <> 'x' OR sys.To = 'x'", with_garbage())


def test_only_named_values_are_decoded_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []

    def watch(source: bytes, at: int) -> tuple[object, int]:
        result = decode(source, at)
        decoded.append(result[0])
        return result

    monkeypatch.setattr(message_view, "decode", watch)
    view = MessageView(stored({"a": "one", "b": "two", "c": "three"}, subject="label", to="there"))
    for _ in range(3):
        assert view.value(b"b") == "two"
        assert view.value(2) == "label"
        assert view.value(b"missing") is None
    assert decoded == ["two", "label"]


def test_a_filter_on_system_properties_does_not_read_application_properties() -> None:
    properties = build(properties=Properties(message_id="m", subject="orders"))
    broken = properties + b"\x00\x53\x74\xc1\x03\x02\xff\xff" + b"\x00\x53\x75\xa0\x00"
    assert matches("sys.Label = 'orders'", stored_bare(broken))


USUAL = build(properties=Properties(message_id="m", subject="s"), application_properties={"a": 1}, body=data(b"x"))
PARTS = {section: Message(USUAL).raw(section) for section in (Section.PROPERTIES, Section.APPLICATION_PROPERTIES)}
BODY = Message(USUAL).raw(Section.DATA)


@pytest.mark.parametrize(
    "bare",
    [
        USUAL,
        PARTS[Section.APPLICATION_PROPERTIES] + PARTS[Section.PROPERTIES] + BODY,
        BODY + PARTS[Section.APPLICATION_PROPERTIES] + PARTS[Section.PROPERTIES],
        b"\x00"
        + encode(Symbol("amqp:properties:list"))
        + PARTS[Section.PROPERTIES][3:]
        + USUAL[len(PARTS[Section.PROPERTIES]) :],
        PARTS[Section.PROPERTIES] + b"\x00\x80" + pack(">Q", 0x74) + PARTS[Section.APPLICATION_PROPERTIES][3:] + BODY,
        PARTS[Section.PROPERTIES] + encode(Described(ULong(0x74), {Symbol("A"): 1, 5: 2, "é" * 200: 3})) + BODY,
    ],
)
def test_sections_are_found_in_any_order_and_encoding(bare: bytes) -> None:
    assert matches("a = 1 AND sys.Label = 's' AND sys.MessageId = 'm' AND NOT EXISTS(b)", stored_bare(bare))


@pytest.mark.parametrize("bare", [b"", data(b"x"), b"\x00\x53\x73\x45" + data(b"x"), build(application_properties={})])
def test_a_message_may_lack_either_section(bare: bytes) -> None:
    assert matches("a IS NULL AND sys.Label IS NULL", stored_bare(bare))


def test_long_names_are_found() -> None:
    name = "n" * 300
    assert matches(f"{name} = 1 AND größe = 2", stored({name.upper(): 1, "GRÖßE": 2}))
