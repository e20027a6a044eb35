"""Delivery states: what became of a message (part 3.4), also inside a transaction (part 4.5).

`ACCEPTED` and `RELEASED` have nothing in them and are shared. Owns: the declarations.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.composite import ANNOTATIONS, ANY, BINARY, BOOLEAN, UINT, ULONG, Composite, composite, typed_field
from twinbus.amqp.performatives import ERROR, Error


@composite(0x23, "amqp:received:list")
class Received(Composite):
    """How much of a partial delivery has arrived; only for resuming one."""

    section_number: int = typed_field(UINT)
    section_offset: int = typed_field(ULONG)


@composite(0x24, "amqp:accepted:list")
class Accepted(Composite):
    """Taken over."""


@composite(0x25, "amqp:rejected:list")
class Rejected(Composite):
    """Refused, as it is, for good."""

    error: Error | None = typed_field(ERROR, default=None)


@composite(0x26, "amqp:released:list")
class Released(Composite):
    """Given back untouched."""


@composite(0x27, "amqp:modified:list")
class Modified(Composite):
    """Given back with a change to what is said of it."""

    delivery_failed: bool = typed_field(BOOLEAN, default=False)
    undeliverable_here: bool = typed_field(BOOLEAN, default=False)
    message_annotations: dict[object, object] | None = typed_field(ANNOTATIONS, default=None)


@composite(0x33, "amqp:declared:list")
class Declared(Composite):
    """A transaction was opened; this is its id."""

    txn_id: bytes = typed_field(BINARY)


@composite(0x34, "amqp:transactional-state:list")
class TransactionalState(Composite):
    """An outcome that holds once its transaction is committed."""

    txn_id: bytes = typed_field(BINARY)
    outcome: object = typed_field(ANY, default=None)


@composite(0x31, "amqp:declare:list")
class Declare(Composite):
    """Body of a message to the coordinator: open a transaction."""

    global_id: object = typed_field(ANY, default=None)


@composite(0x32, "amqp:discharge:list")
class Discharge(Composite):
    """Body of a message to the coordinator: commit the transaction, or roll it back if `fail`."""

    txn_id: bytes = typed_field(BINARY)
    fail: bool = typed_field(BOOLEAN, default=False)


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()
