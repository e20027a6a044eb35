"""Operations that are part of a transaction: done when that is committed, or never.

What they answer before is on condition: sequence numbers that messages will have, locks that will be settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Array
from twinbus.broker.settlement import lock_lost
from twinbus.server.operations.messages import held_numbers, read_disposition, read_scheduled
from twinbus.server.operations.outcomes import success

if TYPE_CHECKING:
    from twinbus.broker.transaction import Transaction
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply


def schedule(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Store messages for later."""
    numbers = transaction.schedule(subject.sendable, read_scheduled(subject, arguments).records)
    reply(success({"sequence-numbers": Array(int, list(numbers))}))


def update_disposition(subject: Subject, arguments: Arguments, transaction: Transaction, reply: Reply) -> None:
    """Settle messages by their lock tokens."""
    how, properties = read_disposition(arguments)
    numbers = held_numbers(subject, arguments)
    if transaction.settle(subject.receivable, subject.fragment, numbers, how, properties):
        raise lock_lost()
    reply(success({}))
