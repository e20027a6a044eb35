"""Bytes of composites that peers rely on, defaults of absent fields, and tolerated deviations of peers."""

from __future__ import annotations

import pytest

from tests.amqp.codec.composite_strategies import described, fields, read
from tests.amqp.codec.value_strategies import with_type
from twinbus.amqp.codec.composite import UINT, Composite, composite, from_described, typed_field
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, End, Error, Flow, Open, Transfer
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Accepted, Modified, Received, Rejected, Released
from twinbus.amqp.sasl import SaslMechanisms
from twinbus.amqp.states import ReceiverSettleMode, SenderSettleMode
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort


def test_an_error_is_encoded_with_three_fields_even_if_two_are_null() -> None:
    condition = b"amqp:not-found"
    expected = b"\x00\x53\x1d\xc0\x13\x03\xa3\x0e" + condition + b"\x40\x40"
    assert Error(condition="amqp:not-found").encode() == expected
    assert Rejected(error=Error(condition="amqp:not-found")).encode() == b"\x00\x53\x25\xc0\x19\x01" + expected


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (ACCEPTED, "005324 45"),
        (RELEASED, "005326 45"),
        (Rejected(), "005325 c00201 40"),
        (Modified(delivery_failed=True), "005327 c00403 41 42 40"),
        (Received(section_number=0, section_offset=256), "005323 c00c02 5200 800000000000000100"),
        (End(), "005317 c00201 40"),
        (Close(), "005318 c00201 40"),
        (Detach(handle=3, closed=True), "005316 c00503 5203 41 40"),
        (
            Flow(
                incoming_window=2048, next_outgoing_id=1, outgoing_window=5, handle=0, delivery_count=0, link_credit=9
            ),
            "005313 c0150b 40 7000000800 5201 5205 5200 5200 5209 40 42 42 40",
        ),
        (
            Begin(remote_channel=1, next_outgoing_id=0, incoming_window=1, outgoing_window=1),
            "005311 c01208 600001 5200 5201 5201 70ffffffff 40 40 40",
        ),
        (SaslMechanisms(sasl_server_mechanisms=("PLAIN",)), "005340 c00e01 e00b01b300000005504c41494e"),
        (
            Open(container_id="a"),
            "005310 c0130a a10161 40 70ffffffff 60ffff 40 40 40 40 40 40",
        ),
        (
            Target(address="q"),
            "005329 c01807 a10171 5200 a30b73657373696f6e2d656e64 5200 42 40 40",
        ),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Composite) else "",
)
def test_a_composite_has_these_bytes(value: Composite, encoding: str) -> None:
    assert value.encode().hex() == encoding.replace(" ", "")
    assert from_described(described(bytes.fromhex(encoding))) == value


def test_an_empty_source_as_the_javascript_sdk_sends_it_has_all_defaults() -> None:
    assert from_described(described(bytes.fromhex("005328 45"))) == Source()


def test_the_defaults_are_those_of_the_specification() -> None:
    opened, attach = Open(container_id=""), Attach(name="", handle=0, role=True)
    begin = Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=0)
    assert (opened.max_frame_size, opened.channel_max, begin.handle_max) == (4_294_967_295, 65_535, 4_294_967_295)
    assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (2, 0)
    assert Source().expiry_policy == Target().expiry_policy == "session-end"
    assert Transfer(handle=0).settled is None
    assert fields(attach)[3:5] == [UByte(SenderSettleMode.MIXED), UByte(ReceiverSettleMode.FIRST)]
    assert fields(opened)[3] == UShort(65_535)


def test_a_single_symbol_is_read_as_an_array_of_one() -> None:
    for written in (Symbol("PLAIN"), Array(Symbol, [Symbol("PLAIN")])):
        assert read(SaslMechanisms, [written]) == SaslMechanisms(sasl_server_mechanisms=("PLAIN",))


@pytest.mark.parametrize(
    "value", [Array(str, ["a"]), Array(Symbol, [Symbol("a")], (ULong(1),)), Array(Symbol, []).items], ids=repr
)
def test_a_multiple_symbol_field_refuses_other_values(value: object) -> None:
    with pytest.raises(DecodeError, match="sasl_server_mechanisms"):
        read(SaslMechanisms, [value])


def test_keys_of_a_fields_map_are_encoded_as_symbols() -> None:
    assert with_type(fields(Error(condition="a", info={"key": "value"}))[2]) == with_type({Symbol("key"): "value"})


def test_string_keys_are_accepted_in_a_map_that_requires_symbol_keys() -> None:
    decoded = read(Error, [Symbol("a"), None, {"key": 1, "é": 2}])
    assert isinstance(decoded, Error)
    assert with_type(decoded.info) == with_type({"key": 1, "é": 2})
    assert with_type(fields(decoded)[2]) == with_type({Symbol("key"): 1, "é": 2})


def test_composites_in_untyped_fields_are_decoded_as_composites() -> None:
    attach = Attach(name="a", handle=0, role=False, source=Source(default_outcome=Modified()), target=Target())
    decoded = from_described(described(attach.encode()))
    assert isinstance(decoded, Attach)
    assert decoded == attach
    assert isinstance(decoded.source, Source)
    assert isinstance(decoded.source.default_outcome, Modified)


def test_a_decode_error_names_the_nested_composite_that_is_invalid() -> None:
    attach = [Symbol("x"), UInt(0), True, None, None, Described(ULong(0x28), [None, "durable"])]
    with pytest.raises(DecodeError, match="amqp:attach:list: name is"):
        read(Attach, list(attach))
    attach[0] = "x"
    with pytest.raises(DecodeError, match="amqp:source:list: durable is 'durable', not a uint"):
        read(Attach, list(attach))


def test_a_composite_may_have_a_descriptor_of_eight_bytes() -> None:
    @composite(0x1234_5678_0000_0001, "example:vendor:list")
    class Vendor(Composite):
        number: int = typed_field(UINT)

    encoding = Vendor(number=7).encode()
    assert encoding.hex() == "00801234567800000001c003015207"
    assert from_described(described(encoding)) == Vendor(number=7)


def test_decoded_outcomes_without_fields_equal_the_shared_instances() -> None:
    assert from_described(described(ACCEPTED.encode())) == ACCEPTED == Accepted()
    assert from_described(described(RELEASED.encode())) == RELEASED == Released()
    assert ACCEPTED != RELEASED  # type: ignore[comparison-overlap]  # that is the point
