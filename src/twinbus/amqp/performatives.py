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
    of,
    one_of,
)
from twinbus.amqp.states import ReceiverSettleMode, SenderSettleMode

UNLIMITED: Final = 2**32 - 1


@composite(0x1D, "amqp:error:list")
class Error(Composite):
    """Why something was refused, detached, ended or closed."""

    condition: str = of(SYMBOL)
    description: str | None = of(STRING, default=None)
    info: dict[str, object] | None = of(FIELDS, default=None)


ERROR: Final = one_of(Error)


@composite(0x10, "amqp:open:list")
class Open(Composite):
    """What each end says of itself first."""

    container_id: str = of(STRING)
    hostname: str | None = of(STRING, default=None)
    max_frame_size: int = of(UINT, default=UNLIMITED)
    channel_max: int = of(USHORT, default=65_535)
    idle_time_out: int | None = of(UINT, default=None)
    outgoing_locales: tuple[str, ...] | None = of(SYMBOLS, default=None)
    incoming_locales: tuple[str, ...] | None = of(SYMBOLS, default=None)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    properties: dict[str, object] | None = of(FIELDS, default=None)


@composite(0x11, "amqp:begin:list")
class Begin(Composite):
    """Starts a session on a channel, or answers one."""

    remote_channel: int | None = of(USHORT, default=None)
    next_outgoing_id: int = of(UINT)
    incoming_window: int = of(UINT)
    outgoing_window: int = of(UINT)
    handle_max: int = of(UINT, default=UNLIMITED)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    properties: dict[str, object] | None = of(FIELDS, default=None)


@composite(0x12, "amqp:attach:list")
class Attach(Composite):
    """Attaches a link to a session, or answers one."""

    name: str = of(STRING)
    handle: int = of(UINT)
    role: bool = of(BOOLEAN)
    snd_settle_mode: int = of(UBYTE, default=SenderSettleMode.MIXED)
    rcv_settle_mode: int = of(UBYTE, default=ReceiverSettleMode.FIRST)
    source: object = of(ANY, default=None)
    target: object = of(ANY, default=None)
    unsettled: dict[object, object] | None = of(MAP, default=None)
    incomplete_unsettled: bool = of(BOOLEAN, default=False)
    initial_delivery_count: int | None = of(UINT, default=None)
    max_message_size: int | None = of(ULONG, default=None)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
    properties: dict[str, object] | None = of(FIELDS, default=None)


@composite(0x13, "amqp:flow:list")
class Flow(Composite):
    """The state of a session's windows and, with a handle, of a link's credit."""

    next_incoming_id: int | None = of(UINT, default=None)
    incoming_window: int = of(UINT)
    next_outgoing_id: int = of(UINT)
    outgoing_window: int = of(UINT)
    handle: int | None = of(UINT, default=None)
    delivery_count: int | None = of(UINT, default=None)
    link_credit: int | None = of(UINT, default=None)
    available: int | None = of(UINT, default=None)
    drain: bool = of(BOOLEAN, default=False)
    echo: bool = of(BOOLEAN, default=False)
    properties: dict[str, object] | None = of(FIELDS, default=None)


@composite(0x14, "amqp:transfer:list")
class Transfer(Composite):
    """One frame of a message; the message's bytes follow it in the frame."""

    handle: int = of(UINT)
    delivery_id: int | None = of(UINT, default=None)
    delivery_tag: bytes | None = of(BINARY, default=None)
    message_format: int | None = of(UINT, default=None)
    settled: bool | None = of(BOOLEAN, default=None)
    more: bool = of(BOOLEAN, default=False)
    rcv_settle_mode: int | None = of(UBYTE, default=None)
    state: object = of(ANY, default=None)
    resume: bool = of(BOOLEAN, default=False)
    aborted: bool = of(BOOLEAN, default=False)
    batchable: bool = of(BOOLEAN, default=False)


@composite(0x15, "amqp:disposition:list")
class Disposition(Composite):
    """What became of a range of deliveries."""

    role: bool = of(BOOLEAN)
    first: int = of(UINT)
    last: int | None = of(UINT, default=None)
    settled: bool = of(BOOLEAN, default=False)
    state: object = of(ANY, default=None)
    batchable: bool = of(BOOLEAN, default=False)


@composite(0x16, "amqp:detach:list")
class Detach(Composite):
    """Detaches a link; for good if `closed`."""

    handle: int = of(UINT)
    closed: bool = of(BOOLEAN, default=False)
    error: Error | None = of(ERROR, default=None)


@composite(0x17, "amqp:end:list")
class End(Composite):
    """Ends a session."""

    error: Error | None = of(ERROR, default=None)


@composite(0x18, "amqp:close:list")
class Close(Composite):
    """Closes a connection."""

    error: Error | None = of(ERROR, default=None)
