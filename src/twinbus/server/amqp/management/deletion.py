"""Operations that delete messages, resubmit or move them, or serve clients that read a queue as a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int
from twinbus.broker.ports.fragment import READ_BATCH_SIZE, RemovalCriteria, RemovalResult
from twinbus.model.errors import EntityNotFound, InvalidArgument, ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.server.amqp.management.responses import failure, no_content, success

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.fragment import OnRemoved
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply

MAX_BATCH_DELETE: Final = 4_000
MAX_RESUBMIT: Final = READ_BATCH_SIZE
"""How many dead letters can be resubmitted at once: they move together, so they are read together."""


def batch_delete(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete the oldest active messages."""
    context.check_epoch(arguments)
    criteria = RemovalCriteria(
        max_count=min(arguments.whole_number("message-count", minimum=1), MAX_BATCH_DELETE),
        enqueued_before_ms=arguments.whole_number("enqueued-time-utc", minimum=-(2**63), default=2**63),
        session_id=arguments.session(),
    )

    def on_removed(result: RemovalResult | ServiceBusError) -> None:
        if isinstance(result, ServiceBusError):
            on_reply(failure(result))
        elif result.removed_count:
            on_reply(success({"message-count": Int(result.removed_count)}))
        else:
            on_reply(no_content({"message-count": Int(0)}))

    context.fragment.local.removal.purge(criteria, on_removed)


def purge(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete all messages in a state, except locked ones."""
    context.check_epoch(arguments)
    state = arguments.text_or_none("state") or "active"
    removal = context.fragment.local.removal
    operations: dict[str, Callable[[RemovalCriteria, OnRemoved], None]] = {
        "active": removal.purge,
        "deferred": removal.remove_deferred,
        "scheduled": removal.remove_scheduled,
    }
    if state not in operations:
        raise InvalidArgument(f"state is {state!r:.60}; it must be one of {', '.join(operations)}")
    operations[state](RemovalCriteria(), _reply_with_counts(on_reply, "removed"))


def complete_up_to(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Complete active messages up to a sequence number, except locked ones."""
    context.check_epoch(arguments)
    _check_fragment(arguments)
    _check_entity_id(context, arguments)
    criteria = RemovalCriteria(max_sequence=arguments.whole_number("sequence-number", minimum=0))
    context.fragment.local.removal.remove_active(criteria, _reply_with_counts(on_reply, "completed"))


def delete_by_sequence_number(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete messages in any state by sequence number, except locked ones."""
    context.check_epoch(arguments)

    def on_removed(numbers: list[int] | ServiceBusError) -> None:
        if isinstance(numbers, ServiceBusError):
            on_reply(failure(numbers))
        else:
            on_reply(success({"sequence-numbers": Array(int, [*sorted(numbers)])}))

    context.fragment.local.removal.remove_by_sequence(arguments.sequence_numbers(), on_removed)


def list_fragments(context: RequestContext, _arguments: Arguments, on_reply: OnReply) -> None:
    """Return the fragment's range of sequence numbers, message count and availability."""
    fragment = context.fragment.local
    table = fragment.message_table

    def on_purged_found(purged: int | ServiceBusError) -> None:
        description: dict[str, object] = {
            "fragment": fragment.number,
            "low-sequence-number": table.low_watermark,
            "next-sequence-number": table.committed.next_sequence,
            "message-count": table.committed.active_count,
            "is-available": fragment.can_deliver,
        }
        if isinstance(purged, int):
            description["purged-sequence-number"] = purged
        on_reply(success({"entity-id": context.entity.entity_id, "fragments": [description]}))

    if fragment.can_deliver:
        fragment.removal.find_purged_up_to(on_purged_found)
    else:
        on_purged_found(StoreUnavailable("the store is down"))


def check_resubmission(context: RequestContext, arguments: Arguments) -> None:
    """Raise InvalidArgument if the messages cannot be resubmitted."""
    if context.sub_queue is not SubQueue.DEAD_LETTER:
        raise InvalidArgument(f"resubmit needs a dead-letter queue, and '{context.path}' is not one")
    context.check_epoch(arguments)
    numbers = arguments.sequence_numbers()
    if len(numbers) > MAX_RESUBMIT:
        raise InvalidArgument(f"sequence-numbers has {len(numbers)} numbers; resubmit at most {MAX_RESUBMIT} at once")
    if arguments.has("message") and len(numbers) > 1:
        raise InvalidArgument("message replaces the contents of one message, but sequence-numbers has several")


def resubmit(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Resubmit dead letters to their entity, optionally with new contents: all of them, or none."""
    check_resubmission(context, arguments)
    edited = arguments.binary("message") if arguments.has("message") else None
    numbers = arguments.sequence_numbers()

    def on_resubmitted(new_numbers: list[int] | ServiceBusError) -> None:
        if isinstance(new_numbers, ServiceBusError):
            on_reply(failure(new_numbers))
        else:
            on_reply(success({"sequence-numbers": Array(int, list(new_numbers))}))

    context.part.resubmit(numbers, edited, context.namespace.intake, on_resubmitted)


def check_move(context: RequestContext, arguments: Arguments) -> str:
    """Return the path of the destination. Raise a ServiceBusError if the messages cannot be moved there."""
    context.check_epoch(arguments)
    numbers = arguments.sequence_numbers()
    if len(numbers) > MAX_RESUBMIT:
        raise InvalidArgument(f"sequence-numbers has {len(numbers)} numbers; move at most {MAX_RESUBMIT} at once")
    destination = context.namespace.find_sendable(arguments.text("destination"))
    if destination is context.entity and context.sub_queue is SubQueue.MAIN:
        raise InvalidArgument(f"the messages are in '{context.path}' already: name another destination")
    destination.check_send_enabled()
    return destination.path


def move(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Move active messages to another entity: all of them, or none."""
    destination, numbers = check_move(context, arguments), arguments.sequence_numbers()

    def on_moved(error: ServiceBusError | None) -> None:
        if error is not None:
            on_reply(failure(error))
        else:
            on_reply(success({"sequence-numbers": Array(int, list(numbers))}))

    context.part.move(context.sub_queue, numbers, destination, context.namespace.intake, on_moved)


def _reply_with_counts(on_reply: OnReply, count_name: str) -> Callable[[RemovalResult | ServiceBusError], None]:
    def on_removed(result: RemovalResult | ServiceBusError) -> None:
        if isinstance(result, ServiceBusError):
            on_reply(failure(result))
        else:
            on_reply(success({count_name: result.removed_count, "skipped": result.skipped_count}))

    return on_removed


def _check_entity_id(context: RequestContext, arguments: Arguments) -> None:
    """Raise EntityNotFound if the caller means a deleted entity that had this path: its sequence numbers are reused."""
    current_id = context.entity.entity_id
    expected_id = arguments.whole_number("entity-id", minimum=0, default=current_id)
    if expected_id != current_id:
        raise EntityNotFound(
            f"'{context.path}' was deleted and created again: its id was {expected_id}, and is now {current_id}"
        )


def _check_fragment(arguments: Arguments) -> None:
    number = arguments.whole_number("fragment", minimum=0, default=0)
    if number:
        raise InvalidArgument(f"there is no fragment {number}: the entity has one, number 0")
