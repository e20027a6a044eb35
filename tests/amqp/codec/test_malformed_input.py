"""Malformed input: decoding raises DecodeError, and no other exception, for bytes that are not an AMQP value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.amqp.codec.reference_encoder import CODES, encoding_choices, random_encoding
from tests.amqp.codec.value_strategies import examples, values, with_type
from twinbus.amqp.codec.decode import decode, open_list, open_map, skip
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import DECODE_ERROR, DecodeError
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from random import Random

KNOWN = {0x00, *(code for codes in CODES.values() for code in codes)}
UNKNOWN = sorted(set(range(256)) - KNOWN)

MALFORMED: list[tuple[str, str, str]] = [
    # name of the case, bytes, expected reason
    ("nothing at all", "", "past the end"),
    ("a description of nothing", "00", "past the end"),
    ("a descriptor without a value", "00 5301", "past the end"),
    ("a boolean of 2", "56 02", "0x02 is not a boolean"),
    ("a boolean of 255", "56 ff", "0xff is not a boolean"),
    ("a boolean of 2 in an array", "e0 03 01 56 02", "0x02 is not a boolean"),
    ("the first surrogate", "73 0000d800", "not a Unicode character"),
    ("the last surrogate", "73 0000dfff", "not a Unicode character"),
    ("a char beyond Unicode", "73 00110000", "not a Unicode character"),
    ("a char of all ones", "73 ffffffff", "not a Unicode character"),
    ("a string of no UTF-8", "a1 01 ff", "not UTF-8"),
    ("a string with a character cut off", "a1 01 c3", "not UTF-8"),
    ("a string with a null in two bytes", "a1 02 c080", "not UTF-8"),
    ("a string with a surrogate", "a1 03 eda080", "not UTF-8"),
    ("a long string of no UTF-8", "b1 00000001 ff", "not UTF-8"),
    ("a string of no UTF-8 in an array", "e0 04 01 a1 01 ff", "not UTF-8"),
    ("a symbol beyond ASCII", "a3 01 80", "not ASCII"),
    ("a symbol in UTF-8", "a3 02 c3a9", "not ASCII"),
    ("a long symbol beyond ASCII", "b3 00000001 80", "not ASCII"),
    ("a binary longer than the input", "a0 03 0000", "past the end"),
    ("a long binary longer than the input", "b0 00000003 0000", "past the end"),
    ("a list longer than the input", "c0 04 01 5507", "past the end"),
    ("a long list longer than the input", "d0 00000007 00000001 5507", "past the end"),
    ("a list longer than its elements", "c0 04 01 5507 40", "its elements have"),
    ("a list shorter than its elements", "c0 02 01 5507", "its elements have"),
    ("a list of more elements than it has", "c0 03 02 5507 40", "its elements have"),
    ("a list of fewer elements than it has", "c0 03 01 40 40", "its elements have"),
    ("a list of no size", "c0 00 00", "its elements have"),
    ("a long list of no size", "d0 00000000 00000000", "its elements have"),
    ("a long list without a count", "d0 00000002 0000", "past the end"),
    ("an empty list with something in it", "c0 02 00 40", "its elements have"),
    ("a list that ends in the middle of the next", "c0 04 01 c0 04 03 404040", "its elements have"),
    ("a map longer than its elements", "c1 04 02 40 40 40", "its elements have"),
    ("a map shorter than its elements", "c1 02 02 40 40", "its elements have"),
    ("a map with a key alone", "c1 02 01 40", "a key that has no value"),
    ("a long map with a key alone", "d1 00000007 00000003 404040", "a key that has no value"),
    ("a key twice", "c1 07 04 5501 40 5501 40", "the same key twice"),
    ("a key twice in a long map", "d1 0000000a 00000004 5501 40 5501 40", "the same key twice"),
    ("a key twice in two encodings", "c1 06 04 43 40 5200 40", "the same key twice"),
    ("a boolean key twice in two encodings", "c1 06 04 41 40 5601 40", "the same key twice"),
    ("a string key twice in two encodings", "c1 0c 04 a10161 40 b10000000161 40", "the same key twice"),
    ("null as a key twice", "c1 05 04 40 41 40 42", "the same key twice"),
    ("a list as a key twice", "c1 05 04 45 41 45 42", "the same key twice"),
    ("a list as a key twice in two encodings", "c1 07 04 45 41 c00100 42", "the same key twice"),
    ("a described key twice", "c1 0b 04 00530140 41 00530140 42", "the same key twice"),
    ("a key twice among others that Python takes for one", "c1 08 06 41 40 5501 40 41 40", "the same key twice"),
    ("an array without a constructor", "e0 01 00", "past the end"),
    ("an array whose constructor lies behind it", "e0 01 00 40", "its elements have"),
    ("an array longer than its elements", "e0 04 01 52 07 08", "its elements have"),
    ("an array shorter than its elements", "e0 02 01 52 07", "its elements have"),
    ("an array with elements missing", "e0 03 02 52 07", "past the end"),
    ("an array of an unknown type", "e0 03 01 57 00", "unknown AMQP constructor 0x57"),
    ("an empty array of an unknown type", "e0 02 00 ff", "unknown AMQP constructor 0xff"),
    ("an array described by nothing", "e0 02 01 00", "past the end"),
    ("an array described but without a constructor", "e0 04 01 00 5301", "past the end"),
    ("an array within an array that is too long", "e0 06 01 e0 04 01 5207", "past the end"),
]


@pytest.mark.parametrize(("name", "encoding", "reason"), MALFORMED, ids=[name for name, _, _ in MALFORMED])
def test_malformed_input_is_refused_with_a_reason(name: str, encoding: str, reason: str) -> None:
    for before in (b"", b"\x40"):
        with pytest.raises(DecodeError, match=reason) as raised:
            decode(before + bytes.fromhex(encoding), len(before))
        assert raised.value.condition == DECODE_ERROR, name


@pytest.mark.parametrize("code", UNKNOWN, ids=hex)
def test_an_unknown_constructor_is_refused(code: int) -> None:
    value = bytes((code,)) + bytes(40)
    reason = f"unknown AMQP constructor 0x{code:02x}"
    for data in (
        value,
        b"\x00" + value,
        b"\x00\x53\x01" + value,
        bytes((0xC0, len(value) + 1, 1)) + value,
        bytes((0xC1, len(value) + 2, 2, 0x40)) + value,
        bytes((0xE0, len(value) + 1, 1)) + value,
    ):
        with pytest.raises(DecodeError, match=reason):
            decode(data)


@pytest.mark.parametrize("code", range(1, 0x40), ids=hex)
def test_skip_refuses_constructors_of_unknown_width(code: int) -> None:
    with pytest.raises(DecodeError, match="unknown AMQP constructor"):
        skip(bytes((code,)) + bytes(40), 0)


def test_input_that_ends_before_the_value_starts_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode(b"\x40", 1)
    with pytest.raises(DecodeError):
        skip(b"\x40", 1)
    with pytest.raises(DecodeError):
        decode(b"\x40", 100)


def check_decoding(data: bytes) -> None:
    """Assert that `data` raises DecodeError or decodes to a value that can be encoded again, and that skip agrees."""
    try:
        value, end = decode(data)
    except DecodeError:
        try:
            assert skip(data, 0) <= len(data)
        except DecodeError:
            return
        return
    assert 0 < end <= len(data)
    assert skip(data, 0) == end
    assert with_type(decode(encode(value))[0]) == with_type(value)


@examples(300)
@given(st.sampled_from(sorted(KNOWN)), st.binary(max_size=100))
def test_random_bytes_after_any_constructor_decode_or_raise_decode_error(code: int, rest: bytes) -> None:
    check_decoding(bytes((code,)) + rest)


@examples(150)
@given(values, encoding_choices(), st.data())
def test_a_damaged_encoding_decodes_or_raises_decode_error(value: object, chance: Random, data: st.DataObject) -> None:
    encoding = bytearray(random_encoding(value, chance))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoding)))
        removed = data.draw(st.integers(0, 2))
        encoding[at : at + removed] = data.draw(st.sampled_from([b"", b"\x00", b"\x01", b"\x40", b"\xff", b"\xd1"]))
    check_decoding(bytes(encoding))


@examples(200)
@example(b"\x72\x7f\x80\x00\x01")  # a signalling NaN: Python reads it as a quiet NaN, which then stays the same
@example(b"\x82\x7f\xf0\x00\x00\x00\x00\x00\x01")
@given(st.binary(max_size=40))
def test_random_bytes_decode_or_raise_decode_error(data: bytes) -> None:
    check_decoding(data)


# --- open_list and open_map -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [[], [1], [None] * 300])
def test_open_list_returns_the_count_and_the_offset_of_the_first_element(items: list[object]) -> None:
    data = b"\x40" + encode(items)
    count, at = open_list(data, 1)
    assert count == len(items)
    assert data[at:] == b"".join(map(encode, items))


@pytest.mark.parametrize("items", [{}, {Symbol("a"): 1}, dict.fromkeys(range(300))])
def test_open_map_returns_the_count_of_keys_and_values_and_the_offset_of_the_first_key(
    items: dict[object, object],
) -> None:
    data = b"\x40" + encode(items)
    count, at = open_map(data, 1)
    assert count == 2 * len(items)
    assert data[at:] == b"".join(encode(key) + encode(item) for key, item in items.items())


@pytest.mark.parametrize(
    "encoding", ["", "c0", "c0 05", "d0 00000005", "d0 00000005 000000", "c1 01 00", "40", "e0 02 00 40"]
)
def test_open_list_refuses_other_values(encoding: str) -> None:
    with pytest.raises(DecodeError):
        open_list(bytes.fromhex(encoding), 0)


@pytest.mark.parametrize("encoding", ["", "c1", "c1 05", "d1 00000005", "d1 00000005 000000", "c0 01 00", "45", "40"])
def test_open_map_refuses_other_values(encoding: str) -> None:
    with pytest.raises(DecodeError):
        open_map(bytes.fromhex(encoding), 0)
