"""Operations that are part of a transaction: done when that is committed, or never.

What they answer before is on condition: sequence numbers that messages will have, locks that will be settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Array
from twinbus.broker.partitioned.transacting import part_for
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.settlement import lock_lost
from twinbus.server.operations.carrying import carry
from twinbus.server.operations.division import by_token
from twinbus.server.operations.messages import held_numbers, read_disposition, read_scheduled
from twinbus.server.operations.outcomes import success

if TYPE_CHECKING:
    from twinbus.broker.transaction import Transaction
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply


def schedule(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Store messages for later."""
    parcel = read_scheduled(subject, arguments)
    part = part_for(transaction, subject.sendable, parcel.keys)
    if isinstance(part, RemotePart):
        bound = transaction.bind(part)
        assert bound is not None
        carry("com.microsoft:schedule-message", subject.parts[part.number], arguments, reply, bound.number)
        return
    numbers = transaction.schedule(part, parcel.records)
    reply(success({"sequence-numbers": Array(int, list(numbers))}))


def update_disposition(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Settle messages by their lock tokens. The owner of a fragment decides whether the locks are the asker's."""
    how, properties = read_disposition(arguments)
    requests = by_token(subject, arguments)
    bound = [transaction.bind(subject.parts[number].part) for number in requests]
    if bound[0] is not None:
        ((number, some),) = requests.items()  # a transaction is bound to one fragment
        carry("com.microsoft:update-disposition", subject.parts[number], some, reply, bound[0].number)
        return
    for number, some in requests.items():
        part = subject.parts[number]
        if transaction.settle(part.part, part.fragment, held_numbers(part, some), how, properties):
            raise lock_lost()
    reply(success({}))
