"""The frame bodies of part 2 of the specification, and the error they carry.

Transfer and disposition, the two that come by the hundred thousand, are read and written by `hot` instead; they stand
here too because their rare forms (and the tests) use the declared form.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.composite import (
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
    """Why something was refused, detached, ended or closed."""

    condition: str = typed_field(SYMBOL)
    description: str | None = typed_field(STRING, default=None)
    info: dict[str, object] | None = typed_field(FIELDS, default=None)


ERROR: Final = one_of(Error)


@composite(0x10, "amqp:open:list")
class Open(Composite):
    """What each end says of itself first."""

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
    """Starts a session on a channel, or answers one."""

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
    """Attaches a link to a session, or answers one."""

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
    """The state of a session's windows and, with a handle, of a link's credit."""

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
    """One frame of a message; the message's bytes follow it in the frame."""

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
    """What became of a range of deliveries."""

    role: bool = typed_field(BOOLEAN)
    first: int = typed_field(UINT)
    last: int | None = typed_field(UINT, default=None)
    settled: bool = typed_field(BOOLEAN, default=False)
    state: object = typed_field(ANY, default=None)
    batchable: bool = typed_field(BOOLEAN, default=False)


@composite(0x16, "amqp:detach:list")
class Detach(Composite):
    """Detaches a link; for good if `closed`."""

    handle: int = typed_field(UINT)
    closed: bool = typed_field(BOOLEAN, default=False)
    error: Error | None = typed_field(ERROR, default=None)


@composite(0x17, "amqp:end:list")
class End(Composite):
    """Ends a session."""

    error: Error | None = typed_field(ERROR, default=None)


@composite(0x18, "amqp:close:list")
class Close(Composite):
    """Closes a connection."""

    error: Error | None = typed_field(ERROR, default=None)
