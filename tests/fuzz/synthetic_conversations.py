"""Hand-written conversations that no available peer would hold: every performative in its rarer forms.

Owns: these scripts, for both ends. `record_corpus` writes them to the corpus beside the recorded ones.
"""

# ruff: noqa: ANN401  # fields of any performative

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, HEARTBEAT, SASL_FRAME, SASL_HEADER, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Transfer
from twinbus.amqp.errors import DETACH_FORCED, NOT_FOUND
from twinbus.amqp.message import Header, Properties, build, data, sequence, value
from twinbus.amqp.outcomes import (
    ACCEPTED,
    RELEASED,
    Declare,
    Declared,
    Discharge,
    Modified,
    Received,
    Rejected,
    TransactionalState,
)
from twinbus.amqp.sasl import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from twinbus.amqp.terminus import Coordinator, Source, Target
from twinbus.amqp.types import Array, Described, Symbol, UInt, ULong

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite

    Step = bytes | Composite | tuple[int, Composite] | tuple[int, Composite, bytes]

SENDER, RECEIVER = False, True
MESSAGE: Final = build(properties=Properties(message_id="one"), body=data(b"hello"))
RICH_MESSAGE: Final = build(
    header=Header(durable=True, ttl=60_000),
    delivery_annotations={"x-opt-hop": 1},
    message_annotations={"x-opt-partition-key": "k", "x-opt-sequence": 2**40},
    properties=Properties(message_id=ULong(7), reply_to="back", content_type="text/plain", creation_time=1),
    application_properties={"colour": "red", "size": UInt(3), "weight": 1.5},
    body=sequence([1, "two", None], [{"three": 4}]),
    footer={"x-opt-check": b"\x01\x02"},
)
VALUE_MESSAGE: Final = value({"a": [1, 2.5, "x"], "b": Array(Symbol, [Symbol("p"), Symbol("q")])})
TXN: Final = b"\x00\x00\x00\x01"


def encode_conversation(*steps: Step, sasl: tuple[Composite, ...] = ()) -> bytes:
    """Return the bytes of one end: the SASL layer if given, the header, and the frames (default: on channel 0)."""
    out = [SASL_HEADER, *(frame(0, step.encode(), SASL_FRAME) for step in sasl)] if sasl else []
    out.append(AMQP_HEADER)
    for step in steps:
        if isinstance(step, bytes):
            out.append(step)
            continue
        channel, performative, *payload = step if isinstance(step, tuple) else (0, step)
        out.append(frame(channel, performative.encode() + b"".join(payload)))
    return b"".join(out)


def open_(**fields: Any) -> Open:
    return Open(**{"container_id": "peer", "max_frame_size": 4096, "channel_max": 7, **fields})


def begin(remote_channel: int | None = None, **fields: Any) -> Begin:
    defaults: dict[str, Any] = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
    return Begin(remote_channel=remote_channel, **{**defaults, **fields})


def attach(name: str, handle: int, role: bool, **fields: Any) -> Attach:  # noqa: FBT001  # as on the wire
    defaults: dict[str, Any] = {"source": Source(address="queue"), "target": Target(address="queue")}
    if role is SENDER:
        defaults["initial_delivery_count"] = 0
    return Attach(name=name, handle=handle, role=role, **{**defaults, **fields})


def flow(handle: int | None = None, **fields: Any) -> Flow:
    defaults: dict[str, Any] = {
        "next_incoming_id": 0,
        "incoming_window": 100,
        "next_outgoing_id": 0,
        "outgoing_window": 100,
    }
    return Flow(handle=handle, **{**defaults, **fields})


def credit(handle: int, amount: int, **fields: Any) -> Flow:
    return flow(handle, **{"delivery_count": 0, "link_credit": amount, **fields})


def transfer(handle: int, number: int, payload: bytes = MESSAGE, **fields: Any) -> tuple[int, Transfer, bytes]:
    defaults: dict[str, Any] = {"delivery_id": number, "delivery_tag": number.to_bytes(4, "big")}
    return 0, Transfer(handle=handle, **{**defaults, "message_format": 0, "settled": False, **fields}), payload


def partial_transfer(handle: int, payload: bytes, **fields: Any) -> tuple[int, Transfer, bytes]:
    return 0, Transfer(handle=handle, **fields), payload


def disposition(role: bool, first: int, last: int | None = None, **fields: Any) -> Disposition:  # noqa: FBT001
    return Disposition(role=role, first=first, last=last, **{"settled": True, "state": ACCEPTED, **fields})


ERROR: Final = Error(condition=DETACH_FORCED, description="enough", info={"tracking": "7"})
IN_TRANSACTION: Final = TransactionalState(txn_id=TXN, outcome=ACCEPTED)
CLOSING_FRAMES: Final = (Detach(handle=0, closed=True), End(), Close())
OPENING_FRAMES: Final = (open_(), begin())
SERVER_OPENING_FRAMES: Final = (open_(), begin(0))
ANONYMOUS: Final = (SaslInit(mechanism="ANONYMOUS", initial_response=b"peer", hostname="contoso"),)
SASL_SERVER_FRAMES: Final = (SaslMechanisms(sasl_server_mechanisms=("ANONYMOUS", "PLAIN")), SaslOutcome(outcome=0))

CLIENTS: Final[dict[str, bytes]] = {
    "sends": encode_conversation(
        *OPENING_FRAMES,
        attach("s0", 0, SENDER),
        transfer(0, 0),
        transfer(0, 1, RICH_MESSAGE),
        transfer(0, 2),
        *CLOSING_FRAMES,
    ),
    "sends-settled": encode_conversation(
        *OPENING_FRAMES,
        attach("s0", 0, SENDER, snd_settle_mode=1),
        *(transfer(0, number, VALUE_MESSAGE, settled=True) for number in range(6)),
        HEARTBEAT,
        *CLOSING_FRAMES,
    ),
    "sends-in-pieces": encode_conversation(
        *OPENING_FRAMES,
        attach("s0", 0, SENDER),
        transfer(0, 0, RICH_MESSAGE[:60], more=True),
        partial_transfer(0, RICH_MESSAGE[60:120], more=True),
        partial_transfer(0, RICH_MESSAGE[120:], delivery_id=0, settled=True),
        transfer(0, 1, b"x" * 40, more=True),
        partial_transfer(0, b"", aborted=True),
        transfer(0, 2, b"", aborted=True, settled=True),
        transfer(0, 3, b"", more=True),
        partial_transfer(0, b"", more=True),
        partial_transfer(0, MESSAGE),
        *CLOSING_FRAMES,
    ),
    "receives": encode_conversation(
        *OPENING_FRAMES,
        attach("r0", 0, RECEIVER),
        credit(0, 10),
        disposition(RECEIVER, 0, 2),
        disposition(RECEIVER, 3, state=RELEASED),
        disposition(RECEIVER, 4, state=Rejected(error=ERROR)),
        disposition(RECEIVER, 5, 6, state=Modified(delivery_failed=True, message_annotations={"x": 1}), settled=False),
        credit(0, 5, drain=True),
        flow(echo=True),
        credit(0, 0, echo=True, available=3, properties={"p": 1}),
        *CLOSING_FRAMES,
    ),
    "receives-twice-settled": encode_conversation(
        *OPENING_FRAMES,
        attach("r0", 0, RECEIVER, rcv_settle_mode=1),
        credit(0, 4),
        disposition(RECEIVER, 0, 3, settled=False),
        disposition(RECEIVER, 0, 3, settled=True),
        disposition(RECEIVER, 0, 2**31 - 1, settled=False, state=None),
        credit(0, 2**32 - 1),
        *CLOSING_FRAMES,
    ),
    "window-opens-and-closes": encode_conversation(
        open_(max_frame_size=512),
        begin(incoming_window=0),
        attach("r0", 0, RECEIVER),
        attach("r1", 1, RECEIVER),
        credit(0, 10, incoming_window=0),
        credit(1, 10, incoming_window=1),
        credit(0, 20, incoming_window=0, next_incoming_id=1, drain=True),
        flow(incoming_window=3, next_incoming_id=1),
        disposition(RECEIVER, 0, 20),
        flow(incoming_window=2**31, next_incoming_id=2),
        *CLOSING_FRAMES,
    ),
    "transactions": encode_conversation(
        *OPENING_FRAMES,
        attach("c", 0, SENDER, target=Coordinator(capabilities=("amqp:local-transactions",))),
        transfer(0, 0, value(Declare())),
        attach("s0", 1, SENDER),
        transfer(1, 1, state=TransactionalState(txn_id=TXN)),
        attach("r0", 2, RECEIVER),
        credit(2, 3),
        disposition(RECEIVER, 0, 1, state=IN_TRANSACTION),
        transfer(0, 2, value(Discharge(txn_id=TXN, fail=False))),
        *CLOSING_FRAMES,
    ),
    "resumes": encode_conversation(
        *OPENING_FRAMES,
        attach("s0", 0, SENDER, unsettled={b"\x00\x00\x00\x00": Described(ULong(0x23), [UInt(0), ULong(8)])}),
        transfer(0, 0, resume=True, state=Received(section_number=0, section_offset=8)),
        transfer(0, 1, resume=True, state=ACCEPTED, settled=True, aborted=True),
        Detach(handle=0, closed=False),
        attach("s0", 0, SENDER, incomplete_unsettled=True),
        transfer(0, 2),
        *CLOSING_FRAMES,
    ),
    "steals": encode_conversation(
        *OPENING_FRAMES,
        attach("s0", 0, SENDER),
        transfer(0, 0),
        attach("s0", 1, SENDER),
        transfer(1, 1),
        attach("s0", 2, RECEIVER),
        credit(2, 2),
        Detach(handle=0, closed=True),
        Detach(handle=1, error=ERROR),
        End(error=ERROR),
        Close(error=ERROR),
    ),
    "many": encode_conversation(
        open_(channel_max=65_535, idle_time_out=1000),
        *((channel, begin()) for channel in range(3)),
        *((channel, attach(f"s{handle}", handle, SENDER)) for channel in range(3) for handle in range(2)),
        *((channel, attach(f"r{handle}", handle, RECEIVER)) for channel in range(3) for handle in range(2, 4)),
        *((channel, transfer(0, 0)[1], MESSAGE) for channel in range(3)),
        (1, End()),
        (1, Detach(handle=0)),
        (1, begin()),
        (2, End()),
        Close(),
    ),
    "narrow": encode_conversation(
        open_(max_frame_size=512, channel_max=0, idle_time_out=1),
        begin(handle_max=0, incoming_window=1),
        attach("r0", 0, RECEIVER, source=Source(address="a" * 100, filter={"f": Described(Symbol("f:s"), "x" * 80)})),
        credit(0, 2),
        attach("s0", 65_535, SENDER, max_message_size=1),
        begin(),
        *CLOSING_FRAMES,
    ),
    "half-messages": encode_conversation(
        *OPENING_FRAMES,
        *(attach(f"s{handle}", handle, SENDER) for handle in range(3)),
        *(transfer(handle, handle, b"x" * 140, more=True) for handle in range(3)),
        *(partial_transfer(handle, b"x" * 140, more=True) for handle in range(3)),
        *(partial_transfer(handle, b"x" * 140) for handle in range(3)),
        *CLOSING_FRAMES,
    ),
    "too-long-to-answer": encode_conversation(
        open_(max_frame_size=512),
        begin(),
        attach("r0", 0, RECEIVER, source=Source(address="a" * 430)),
        credit(0, 5),
        attach("r1", 1, RECEIVER, source=Source(address="a" * 340)),
        credit(1, 5),
        attach("n" * 425, 2, SENDER),
        attach("n" * 450, 3, SENDER),
        *CLOSING_FRAMES,
    ),
    "refuses-a-begin": encode_conversation(*OPENING_FRAMES, (1, begin(0)), *CLOSING_FRAMES),
    "without-goodbye": encode_conversation(*OPENING_FRAMES, attach("s0", 0, SENDER), transfer(0, 0, more=True)),
    "in-one-breath": encode_conversation(
        *OPENING_FRAMES,
        attach("r0", 0, RECEIVER),
        Detach(handle=0, closed=True),
        attach("r0", 1, RECEIVER),
        End(),
        Close(),
    ),
    "anonymous": encode_conversation(
        *OPENING_FRAMES, attach("s0", 0, SENDER), transfer(0, 0), *CLOSING_FRAMES, sasl=ANONYMOUS
    ),
    "plain": encode_conversation(
        *OPENING_FRAMES, *CLOSING_FRAMES[1:], sasl=(SaslInit(mechanism="PLAIN", initial_response=b"\0user\0password"),)
    ),
    "answers-challenges": encode_conversation(
        *OPENING_FRAMES,
        *CLOSING_FRAMES[1:],
        sasl=(SaslInit(mechanism="PLAIN"), SaslResponse(response=b"one"), SaslResponse(response=b"two")),
    ),
    "declared-by-name": encode_conversation(
        *OPENING_FRAMES,
        # The same performatives with symbolic or eight-byte descriptors, as the specification allows.
        frame(0, encode(Described(Symbol("amqp:attach:list"), ["s0", UInt(0), False, None, None, None, None]))),
        frame(0, b"\x00\x80" + (0x14).to_bytes(8, "big") + transfer(0, 0)[1].encode()[3:] + MESSAGE),
        frame(0, b"\x00\x80" + (0x15).to_bytes(8, "big") + disposition(SENDER, 0).encode()[3:]),
        frame(0, encode(Described(Symbol("amqp:close:list"), []))),
    ),
}

SERVERS: Final[dict[str, bytes]] = {
    "takes": encode_conversation(
        *SERVER_OPENING_FRAMES,
        attach("s0", 0, RECEIVER, max_message_size=1000),
        credit(0, 10),
        disposition(RECEIVER, 0, 1),
        disposition(RECEIVER, 2, state=Rejected(error=ERROR)),
        disposition(RECEIVER, 3, settled=False),
        credit(0, 20, echo=True),
        flow(echo=True),
        *CLOSING_FRAMES,
    ),
    "gives": encode_conversation(
        *SERVER_OPENING_FRAMES,
        attach("r0", 0, SENDER),
        transfer(0, 0),
        transfer(0, 1, RICH_MESSAGE),
        transfer(0, 2, VALUE_MESSAGE, settled=True),
        transfer(0, 3, RICH_MESSAGE[:100], more=True),
        partial_transfer(0, RICH_MESSAGE[100:]),
        disposition(SENDER, 0, 1),
        credit(0, 0, delivery_count=10, available=0, drain=True),
        credit(0, 0, delivery_count=1000, available=0, drain=True),
        *CLOSING_FRAMES,
    ),
    "gives-and-takes": encode_conversation(
        *SERVER_OPENING_FRAMES,
        attach("s0", 0, RECEIVER, rcv_settle_mode=1),
        attach("r0", 1, SENDER),
        credit(0, 3),
        transfer(1, 0),
        transfer(1, 1, b"", more=True),
        disposition(RECEIVER, 0, 2, settled=False),
        disposition(RECEIVER, 0, 2),
        transfer(1, 2, aborted=True),
        Detach(handle=1, closed=False, error=ERROR),
        End(error=ERROR),
        Close(error=ERROR),
    ),
    "refuses": encode_conversation(
        *SERVER_OPENING_FRAMES,
        attach("s0", 0, RECEIVER, source=None, target=None),
        Detach(handle=0, closed=True, error=Error(condition=NOT_FOUND, description="no such queue")),
        attach("r0", 0, SENDER, source=None, target=None),
        Detach(handle=0, closed=True, error=Error(condition=NOT_FOUND, description="no such queue")),
        *CLOSING_FRAMES[1:],
    ),
    "transacts": encode_conversation(
        *SERVER_OPENING_FRAMES,
        attach("s0", 0, RECEIVER),
        credit(0, 10),
        disposition(RECEIVER, 0, state=Declared(txn_id=TXN)),
        disposition(RECEIVER, 1, state=IN_TRANSACTION, settled=False),
        disposition(RECEIVER, 2, 4, state=TransactionalState(txn_id=b"t" * 600)),
        *CLOSING_FRAMES,
    ),
    "begins-itself": encode_conversation(
        open_(max_frame_size=512, channel_max=0),
        begin(0, handle_max=1),
        (5, begin()),
        attach("s0", 3, RECEIVER),
        attach("x", 4, SENDER),
        transfer(4, 0),
        flow(incoming_window=1),
        credit(3, 5, incoming_window=1),
        *CLOSING_FRAMES,
    ),
    "welcomes": encode_conversation(
        *SERVER_OPENING_FRAMES, attach("s0", 0, RECEIVER), credit(0, 5), *CLOSING_FRAMES, sasl=SASL_SERVER_FRAMES
    ),
    "challenges": encode_conversation(
        *SERVER_OPENING_FRAMES,
        *CLOSING_FRAMES[1:],
        sasl=(
            SASL_SERVER_FRAMES[0],
            SaslChallenge(challenge=b"who"),
            SaslChallenge(challenge=b"really"),
            SASL_SERVER_FRAMES[1],
        ),
    ),
    "turns-away": encode_conversation(*SERVER_OPENING_FRAMES, sasl=(SASL_SERVER_FRAMES[0], SaslOutcome(outcome=1))),
}
