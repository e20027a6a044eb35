"""Agreement with pyamqp, the AMQP stack of the Azure SDK for Python: each decodes the other's performatives."""

from __future__ import annotations

from typing import Any, Final

import pytest
from azure.servicebus._pyamqp import endpoints, performatives
from azure.servicebus._pyamqp import error as errors
from azure.servicebus._pyamqp import outcomes as states
from azure.servicebus._pyamqp._decode import decode_frame
from azure.servicebus._pyamqp._encode import encode_frame
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.composite_strategies import composites
from tests.amqp.codec.value_strategies import Values, ascii_texts, examples
from twinbus.amqp.codec.composite import Composite
from twinbus.amqp.codec.decode import DEFAULT_LIMITS
from twinbus.amqp.codec.delivery_frames import TransferWriter, disposition_frame
from twinbus.amqp.codec.frames import read_performative
from twinbus.amqp.codec.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from twinbus.amqp.outcomes import Accepted, Modified, Received, Rejected, Released
from twinbus.amqp.sasl import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Described, Int, Symbol

PYAMQP_CLASSES: Final[dict[type[Composite], Any]] = {
    Open: performatives.OpenFrame,
    Begin: performatives.BeginFrame,
    Attach: performatives.AttachFrame,
    Flow: performatives.FlowFrame,
    Transfer: performatives.TransferFrame,
    Disposition: performatives.DispositionFrame,
    Detach: performatives.DetachFrame,
    End: performatives.EndFrame,
    Close: performatives.CloseFrame,
    SaslMechanisms: performatives.SASLMechanism,
    SaslInit: performatives.SASLInit,
    SaslChallenge: performatives.SASLChallenge,
    SaslResponse: performatives.SASLResponse,
    SaslOutcome: performatives.SASLOutcome,
    Error: errors.AMQPError,
    Source: endpoints.Source,
    Target: endpoints.Target,
    Received: states.Received,
    Accepted: states.Accepted,
    Rejected: states.Rejected,
    Released: states.Released,
    Modified: states.Modified,
}
FRAMES: Final = [cls for cls in PYAMQP_CLASSES if cls.code < 0x1D or cls.code >= 0x40]
OUTCOME_NAMES: Final = {0x23: "received", 0x24: "accepted", 0x25: "rejected", 0x26: "released", 0x27: "modified"}

# --- values that both support -----------------------------------------------------------------------------------------

_texts = st.text(max_size=20)
_values: Final[Values] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1).map(Int)
    | st.floats(allow_nan=False)
    | _texts
    | st.binary(max_size=20)
    | st.uuids()
)
# No empty maps and arrays: pyamqp encodes an empty map as null, and an empty array without a constructor.
_fields = st.dictionaries(ascii_texts, _values, min_size=1, max_size=3)
_symbols = st.lists(ascii_texts, min_size=1, max_size=3).map(tuple)
_filters = st.dictionaries(
    ascii_texts,
    st.builds(Described, ascii_texts.map(Symbol), _texts | st.integers(0, 9).map(Int)),
    min_size=1,
    max_size=2,
)
_errors = st.builds(Error, condition=ascii_texts, description=st.none() | _texts, info=st.none() | _fields)
_states = (
    st.builds(Accepted)
    | st.builds(Released)
    | st.builds(Rejected, error=st.none() | _errors)
    | st.builds(Modified, delivery_failed=st.booleans(), message_annotations=st.none() | _fields)
    | st.builds(Received, section_number=st.integers(0, 300), section_offset=st.integers(0, 300))
)
_sources = st.builds(
    Source,
    address=_texts,
    durable=st.integers(0, 2),
    timeout=st.integers(0, 2**32 - 1),
    filter=st.none() | _filters,
    default_outcome=st.none() | _states,
    outcomes=st.none() | _symbols,
    capabilities=st.none() | _symbols,
)
_targets = st.builds(Target, address=st.none() | _texts, dynamic=st.booleans(), capabilities=st.none() | _symbols)
UNTYPED_FIELDS: Final[dict[str, Values]] = {"source": _sources, "target": _targets, "state": _states}


def supported_by_both(cls: type[Composite]) -> st.SearchStrategy[Composite]:
    narrowed: dict[str, Values] = {
        "map with symbolic keys": _fields,
        "map with symbolic or ulong keys": _fields,
        "symbol, one or more": _symbols,
        "Error": _errors,
    }
    changed: dict[str, Values] = {}
    for name, kind, default in cls.field_specs:
        if kind.name in narrowed:
            optional = st.none() if default is None else st.nothing()
            changed[name] = optional | narrowed[kind.name]
        elif name in UNTYPED_FIELDS:
            changed[name] = st.none() | UNTYPED_FIELDS[name]
        elif name == "unsettled":
            changed[name] = st.none()
    return composites(cls, **changed)


# --- pyamqp decodes ---------------------------------------------------------------------------------------------------


def as_read_by_pyamqp(value: Any) -> Any:  # noqa: ANN401  # any AMQP value
    """Return `value` as pyamqp decodes it: text as bytes, arrays as lists, described values bare, outcomes as dicts."""
    if isinstance(value, Composite):
        listed = [as_read_by_pyamqp(getattr(value, name)) for name, _, _ in value.field_specs]
        return {OUTCOME_NAMES[value.code]: listed} if value.code in OUTCOME_NAMES else listed
    if isinstance(value, Described):
        return as_read_by_pyamqp(value.value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, tuple):
        return [as_read_by_pyamqp(item) for item in value]
    if isinstance(value, dict):
        return {as_read_by_pyamqp(key): as_read_by_pyamqp(item) for key, item in value.items()}
    return value


def read_by_pyamqp(encoding: bytes) -> tuple[int, list[object]]:
    code, fields = decode_frame(memoryview(encoding))
    return code, fields


@pytest.mark.parametrize("cls", FRAMES, ids=lambda cls: cls.__name__)
@examples(15)
@given(data=st.data())
def test_pyamqp_decodes_our_performatives(cls: type[Composite], data: st.DataObject) -> None:
    written = data.draw(supported_by_both(cls))
    payload = b"payload" if cls is Transfer else b""
    code, decoded = read_by_pyamqp(written.encode() + payload)
    expected = as_read_by_pyamqp(written)
    if cls is Transfer:
        expected[3] = expected[3] or 0  # pyamqp has a default where the specification has none
        expected.append(payload)
        decoded[-1] = bytes(decoded[-1])  # type: ignore[call-overload]  # a memoryview of the rest
    assert code == cls.code
    assert decoded == expected


@examples(50)
@given(
    tag=st.binary(max_size=32),
    message_format=st.sampled_from([0, 1, 0x80013700]),
    settled=st.booleans(),
    more=st.booleans(),
    payload=st.binary(max_size=50),
)
def test_pyamqp_decodes_our_hand_written_transfers(
    tag: bytes, message_format: int, *, settled: bool, more: bool, payload: bytes
) -> None:
    head = TransferWriter(1, 2).head(3, tag, message_format, settled=settled, more=more, payload_size=len(payload))
    code, decoded = read_by_pyamqp((head + payload)[8:])
    assert code == Transfer.code
    assert decoded[:11] == [2, 3, tag, message_format, settled, more, None, None, False, False, False]
    assert decoded[11] == payload


@examples(50)
@given(role=st.booleans(), first=st.integers(0, 2**32 - 1), settled=st.booleans(), state=_states)
def test_pyamqp_decodes_our_hand_written_dispositions(
    *, role: bool, first: int, settled: bool, state: Composite
) -> None:
    frame = disposition_frame(1, role, first, first + 1 & 0xFFFFFFFF, settled=settled, state=state.encode())
    code, decoded = read_by_pyamqp(frame[8:])
    assert code == Disposition.code
    last = first + 1 & 0xFFFFFFFF
    assert decoded == [role, first, last, settled, as_read_by_pyamqp(state), False]


# --- twinbus decodes --------------------------------------------------------------------------------------------------


def as_pyamqp(value: Any, field: str = "") -> Any:  # noqa: ANN401  # any AMQP value
    """Return the object that a program passes to pyamqp to send `value`."""
    if isinstance(value, Composite):
        listed = [as_pyamqp(getattr(value, name), name) for name, _, _ in value.field_specs]
        return PYAMQP_CLASSES[type(value)](*listed, **({"payload": b""} if isinstance(value, Transfer) else {}))
    if field == "filter" and value is not None:
        return {
            name: (item.descriptor.encode(), int(item.value) if isinstance(item.value, int) else item.value)
            for name, item in value.items()
        }
    if isinstance(value, tuple):
        return list(value)
    return value


@pytest.mark.parametrize("cls", FRAMES, ids=lambda cls: cls.__name__)
@examples(15)
@given(data=st.data())
def test_we_decode_performatives_that_pyamqp_encodes(cls: type[Composite], data: st.DataObject) -> None:
    sent = data.draw(supported_by_both(cls))
    _, encoding = encode_frame(as_pyamqp(sent))
    assert encoding is not None
    decoded, end = read_performative(bytes(encoding), 0, len(encoding), DEFAULT_LIMITS)
    assert end == len(encoding)
    assert decoded == sent
