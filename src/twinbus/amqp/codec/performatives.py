"""Frame bodies of part 2 of the specification, and the error that they carry.

`delivery_frames` reads and writes transfer and disposition, the two most frequent frames. Both are declared here as
well, for their rare encodings and for tests.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec.composite import (
    ANY,
    BINARY,
    BOOLEAN,
    FIELDS,
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Composite,
    composite,
    one_of,
    typed_field,
)
from twinbus.amqp.states import ReceiverSettleMode, SenderSettleMode

UNLIMITED: Final = 2**32 - 1


@composite(0x1D, "amqp:error:list")
class Error(Composite):
    """Reason why a peer rejected a message, refused or detached a link, ended a session, or closed a connection."""

    condition: str = typed_field(SYMBOL)
    description: str | None = typed_field(STRING, default=None)
    info: dict[str, object] | None = typed_field(FIELDS, default=None)


ERROR: Final = one_of(Error)


@composite(0x10, "amqp:open:list")
class Open(Composite):
    """Performative that opens a connection and announces the limits and capabilities of one end."""

    container_id: str = typed_field(STRING)
    hostname: str | None = typed_field(STRING, default=None)
    max_frame_size: int = typed_field(UINT, default=UNLIMITED)
    channel_max: int = typed_field(USHORT, default=65_535)
    idle_time_out: int | None = typed_field(UINT, default=None)
    outgoing_locales: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    incoming_locales: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    offered_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    properties: dict[str, object] | None = typed_field(FIELDS, default=None)


@composite(0x11, "amqp:begin:list")
class Begin(Composite):
    """Performative that begins a session on a channel, or responds to the peer's begin."""

    remote_channel: int | None = typed_field(USHORT, default=None)
    next_outgoing_id: int = typed_field(UINT)
    incoming_window: int = typed_field(UINT)
    outgoing_window: int = typed_field(UINT)
    handle_max: int = typed_field(UINT, default=UNLIMITED)
    offered_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    properties: dict[str, object] | None = typed_field(FIELDS, default=None)


@composite(0x12, "amqp:attach:list")
class Attach(Composite):
    """Performative that attaches a link to a session, or responds to the peer's attach."""

    name: str = typed_field(STRING)
    handle: int = typed_field(UINT)
    role: bool = typed_field(BOOLEAN)
    snd_settle_mode: int = typed_field(UBYTE, default=SenderSettleMode.MIXED)
    rcv_settle_mode: int = typed_field(UBYTE, default=ReceiverSettleMode.FIRST)
    source: object = typed_field(ANY, default=None)
    target: object = typed_field(ANY, default=None)
    unsettled: dict[object, object] | None = typed_field(MAP, default=None)
    incomplete_unsettled: bool = typed_field(BOOLEAN, default=False)
    initial_delivery_count: int | None = typed_field(UINT, default=None)
    max_message_size: int | None = typed_field(ULONG, default=None)
    offered_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    properties: dict[str, object] | None = typed_field(FIELDS, default=None)


@composite(0x13, "amqp:flow:list")
class Flow(Composite):
    """Flow-control state of a session's windows and, if `handle` is set, of a link's credit."""

    next_incoming_id: int | None = typed_field(UINT, default=None)
    incoming_window: int = typed_field(UINT)
    next_outgoing_id: int = typed_field(UINT)
    outgoing_window: int = typed_field(UINT)
    handle: int | None = typed_field(UINT, default=None)
    delivery_count: int | None = typed_field(UINT, default=None)
    link_credit: int | None = typed_field(UINT, default=None)
    available: int | None = typed_field(UINT, default=None)
    drain: bool = typed_field(BOOLEAN, default=False)
    echo: bool = typed_field(BOOLEAN, default=False)
    properties: dict[str, object] | None = typed_field(FIELDS, default=None)


@composite(0x14, "amqp:transfer:list")
class Transfer(Composite):
    """Performative that carries all or part of a message; the message's bytes follow the performative in the frame."""

    handle: int = typed_field(UINT)
    delivery_id: int | None = typed_field(UINT, default=None)
    delivery_tag: bytes | None = typed_field(BINARY, default=None)
    message_format: int | None = typed_field(UINT, default=None)
    settled: bool | None = typed_field(BOOLEAN, default=None)
    more: bool = typed_field(BOOLEAN, default=False)
    rcv_settle_mode: int | None = typed_field(UBYTE, default=None)
    state: object = typed_field(ANY, default=None)
    resume: bool = typed_field(BOOLEAN, default=False)
    aborted: bool = typed_field(BOOLEAN, default=False)
    batchable: bool = typed_field(BOOLEAN, default=False)


@composite(0x15, "amqp:disposition:list")
class Disposition(Composite):
    """Delivery state of a range of deliveries, and whether the deliveries are settled."""

    role: bool = typed_field(BOOLEAN)
    first: int = typed_field(UINT)
    last: int | None = typed_field(UINT, default=None)
    settled: bool = typed_field(BOOLEAN, default=False)
    state: object = typed_field(ANY, default=None)
    batchable: bool = typed_field(BOOLEAN, default=False)


@composite(0x16, "amqp:detach:list")
class Detach(Composite):
    """Performative that detaches a link, permanently if `closed` is True."""

    handle: int = typed_field(UINT)
    closed: bool = typed_field(BOOLEAN, default=False)
    error: Error | None = typed_field(ERROR, default=None)


@composite(0x17, "amqp:end:list")
class End(Composite):
    """Performative that ends a session."""

    error: Error | None = typed_field(ERROR, default=None)


@composite(0x18, "amqp:close:list")
class Close(Composite):
    """Performative that closes a connection."""

    error: Error | None = typed_field(ERROR, default=None)
