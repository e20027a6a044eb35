"""Operations within a transaction, which take effect when the transaction is committed.

Responses before the commit are provisional: sequence numbers and settlements are valid only after the commit.
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
    """Schedule messages in a transaction."""
    batch = parse_scheduled(context, arguments)
    part = transaction.part_for(context.sendable, batch.partition_keys)

    def run_locally() -> None:
        numbers = transaction.schedule(part, batch.records)
        on_reply(success({"sequence-numbers": Array(int, list(numbers))}))

    run_at_owner(
        ScheduleMessages, context.per_fragment[part.number], arguments, on_reply, run_locally, transaction.bind(part)
    )


def update_disposition(
    context: RequestContext, arguments: Arguments, transaction: Transaction, on_reply: OnReply
) -> None:
    """Settle messages by their lock tokens in a transaction. The owner of the fragment checks who holds the locks."""
    disposition, properties = parse_disposition(arguments)
    requests = split_by_lock_token(context, arguments)
    transaction_ids = [transaction.bind(context.per_fragment[number].part) for number in requests]
    ((number, token_arguments),) = requests.items()  # a transaction is bound to one fragment
    target = context.per_fragment[number]

    def run_locally() -> None:
        if transaction.settle(
            target.part,
            target.fragment,
            held_lock_numbers(target, token_arguments),
            disposition,
            properties,
        ):
            raise lock_lost_error()
        on_reply(success({}))

    run_at_owner(UpdateDisposition, target, token_arguments, on_reply, run_locally, transaction_ids[0])
