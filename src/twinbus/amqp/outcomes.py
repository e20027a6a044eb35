"""Delivery states: outcomes of a message (part 3.4), and outcomes within a transaction (part 4.5).

Owns the declarations. `ACCEPTED` and `RELEASED` have no fields, so they are shared instances.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec.composite import (
    ANNOTATIONS,
    ANY,
    BINARY,
    BOOLEAN,
    UINT,
    ULONG,
    Composite,
    composite,
    typed_field,
)
from twinbus.amqp.codec.performatives import ERROR, Error


@composite(0x23, "amqp:received:list")
class Received(Composite):
    """Extent to which a partial delivery has arrived; only used to resume a delivery."""

    section_number: int = typed_field(UINT)
    section_offset: int = typed_field(ULONG)


@composite(0x24, "amqp:accepted:list")
class Accepted(Composite):
    """Outcome: the receiver has taken responsibility for the message."""


@composite(0x25, "amqp:rejected:list")
class Rejected(Composite):
    """Outcome: the message is invalid and must not be redelivered."""

    error: Error | None = typed_field(ERROR, default=None)


@composite(0x26, "amqp:released:list")
class Released(Composite):
    """Outcome: the message was not processed and may be redelivered unchanged."""


@composite(0x27, "amqp:modified:list")
class Modified(Composite):
    """Outcome: the message was not processed; its delivery count or annotations change before it is redelivered."""

    delivery_failed: bool = typed_field(BOOLEAN, default=False)
    undeliverable_here: bool = typed_field(BOOLEAN, default=False)
    message_annotations: dict[object, object] | None = typed_field(ANNOTATIONS, default=None)


@composite(0x33, "amqp:declared:list")
class Declared(Composite):
    """Outcome of a declare message: the transaction with id `txn_id` was opened."""

    txn_id: bytes = typed_field(BINARY)


@composite(0x34, "amqp:transactional-state:list")
class TransactionalState(Composite):
    """Delivery state of a message or outcome that takes effect when its transaction is committed."""

    txn_id: bytes = typed_field(BINARY)
    outcome: object = typed_field(ANY, default=None)


@composite(0x31, "amqp:declare:list")
class Declare(Composite):
    """Body of a message to the coordinator that opens a transaction."""

    global_id: object = typed_field(ANY, default=None)


@composite(0x32, "amqp:discharge:list")
class Discharge(Composite):
    """Body of a message to the coordinator that commits the transaction, or rolls it back if `fail` is True."""

    txn_id: bytes = typed_field(BINARY)
    fail: bool = typed_field(BOOLEAN, default=False)


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()
