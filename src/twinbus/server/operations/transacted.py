"""Operations that are part of a transaction: done when that is committed, or never.

What they answer before is on condition: sequence numbers that messages will have, locks that will be settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Array
from twinbus.broker.ports.peer_protocol import ScheduleMessages, UpdateDisposition
from twinbus.broker.ports.settlement import lock_lost
from twinbus.server.operations.carrying import carry
from twinbus.server.operations.division import by_token
from twinbus.server.operations.messages import held_numbers, read_disposition, read_scheduled
from twinbus.server.operations.outcomes import success

if TYPE_CHECKING:
    from twinbus.broker.namespace import Transaction
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply


def schedule(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Store messages for later."""
    parcel = read_scheduled(subject, arguments)
    part = transaction.part_for(subject.sendable, parcel.keys)

    def act() -> None:
        numbers = transaction.schedule(part, parcel.records)
        reply(success({"sequence-numbers": Array(int, list(numbers))}))

    carry(ScheduleMessages, subject.parts[part.number], arguments, reply, act, transaction.bind(part))


def update_disposition(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Settle messages by their lock tokens. The owner of a fragment decides whether the locks are the asker's."""
    how, properties = read_disposition(arguments)
    requests = by_token(subject, arguments)
    bound = [transaction.bind(subject.parts[number].part) for number in requests]
    ((number, some),) = requests.items()  # a transaction is bound to one fragment
    asked = subject.parts[number]

    def act() -> None:
        if transaction.settle(asked.part, asked.fragment, held_numbers(asked, some), how, properties):
            raise lock_lost()
        reply(success({}))

    carry(UpdateDisposition, asked, some, reply, act, bound[0])
