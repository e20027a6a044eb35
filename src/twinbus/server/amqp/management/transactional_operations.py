"""Operations that are part of a transaction: done when that is committed, or never.

What they answer before is on condition: sequence numbers that messages will have, locks that will be settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Array
from twinbus.broker.ports.peer_protocol import ScheduleMessages, UpdateDisposition
from twinbus.broker.ports.settlement import lock_lost_error
from twinbus.server.amqp.management.fragment_routing import run_at_owner
from twinbus.server.amqp.management.messages import held_lock_numbers, parse_disposition, parse_scheduled
from twinbus.server.amqp.management.partitioned_operations import split_by_lock_token
from twinbus.server.amqp.management.responses import success

if TYPE_CHECKING:
    from twinbus.broker.namespace import Transaction
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply


def schedule(context: RequestContext, arguments: Arguments, transaction: Transaction, on_reply: OnReply) -> None:
    """Store messages for later."""
    parcel = parse_scheduled(context, arguments)
    part = transaction.part_for(context.sendable, parcel.partition_keys)

    def act() -> None:
        numbers = transaction.schedule(part, parcel.records)
        on_reply(success({"sequence-numbers": Array(int, list(numbers))}))

    run_at_owner(ScheduleMessages, context.per_fragment[part.number], arguments, on_reply, act, transaction.bind(part))


def update_disposition(
    context: RequestContext, arguments: Arguments, transaction: Transaction, on_reply: OnReply
) -> None:
    """Settle messages by their lock tokens. The owner of a fragment decides whether the locks are the asker's."""
    how, properties = parse_disposition(arguments)
    requests = split_by_lock_token(context, arguments)
    bound = [transaction.bind(context.per_fragment[number].part) for number in requests]
    ((number, some),) = requests.items()  # a transaction is bound to one fragment
    asked = context.per_fragment[number]

    def act() -> None:
        if transaction.settle(asked.part, asked.fragment, held_lock_numbers(asked, some), how, properties):
            raise lock_lost_error()
        on_reply(success({}))

    run_at_owner(UpdateDisposition, asked, some, on_reply, act, bound[0])
