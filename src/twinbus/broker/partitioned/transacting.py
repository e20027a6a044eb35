"""Messages that are sent to a partitioned entity in a transaction: all of them to one fragment.

Owns: what is asked of them for that. A batch of one store is the only atomic thing, so the first message's key says
which fragment the transaction is bound to, and the others have the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.queue import via_key_of
from twinbus.model.errors import InvalidOperation, NotAllowed, ServiceBusError
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.broker.intake import Intake
    from twinbus.broker.part import Part
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic
    from twinbus.broker.transaction import Transaction


def part_for_payload(
    transaction: Transaction,
    target: Queue | Topic,
    intake: Intake,
    payload: bytes,
    message_format: int,
    destination: str | None,
) -> Part:
    """What a message, or a batch of them, is sent to; `destination` is where it goes on to, if to another entity.

    InvalidOperation, which fails the transaction.
    """
    if not target.is_partitioned:
        return target.parts[0]
    parcel = Parcel()
    try:
        intake.add_to(parcel, payload, message_format, target.parts[0].main.clock.wall_ms(), target.terms)
    except NotAllowed as error:  # as the original says it
        refusal = InvalidOperation(f"in a transaction: {error}")
        transaction.fail(refusal)
        raise refusal from None
    except ServiceBusError as error:
        transaction.fail(error)
        raise
    keys = parcel.keys + parcel.ping_keys
    if destination is not None:
        keys = [via_key_of(record) for record in parcel.records]
    return part_for(transaction, target, keys)


def part_for(transaction: Transaction, target: Queue | Topic, keys: Iterable[bytes | None]) -> Part:
    """What messages of these keys are sent to. InvalidOperation, which fails the transaction."""
    if not target.is_partitioned:
        return target.parts[0]
    for key in keys:
        try:
            _check(transaction, target.path, key)
        except ServiceBusError as error:
            transaction.fail(error)
            raise
        transaction.key = key
    assert transaction.key is not None
    return target.parts[fragment_of(transaction.key)]


def _check(transaction: Transaction, path: str, key: bytes | None) -> None:
    if key is None:
        raise InvalidOperation(
            f"'{path}' is partitioned: a message that is sent to it in a transaction has a session id or a partition "
            "key, or, where duplicates are detected, a message id"
        )
    if transaction.key is not None and transaction.key != key:
        raise InvalidOperation(
            f"all messages of a transaction on '{path}', which is partitioned, have the same session id or partition "
            f"key; this one has {key.decode(errors='replace')!r:.80}, and others "
            f"{transaction.key.decode(errors='replace')!r:.80}"
        )
