"""Operations that delete messages nobody has, bring dead letters back, or are for who reads a queue as a log."""

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
"""They move together, so they are read together."""


def batch_delete(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete the oldest active messages."""
    context.check_epoch(arguments)
    wanted = RemovalCriteria(
        max_count=min(arguments.whole_number("message-count", minimum=1), MAX_BATCH_DELETE),
        enqueued_before_ms=arguments.whole_number("enqueued-time-utc", minimum=-(2**63), default=2**63),
        session_id=arguments.session(),
    )

    def removed(outcome: RemovalResult | ServiceBusError) -> None:
        if isinstance(outcome, ServiceBusError):
            on_reply(failure(outcome))
        elif outcome.removed_count:
            on_reply(success({"message-count": Int(outcome.removed_count)}))
        else:
            on_reply(no_content({"message-count": Int(0)}))

    context.fragment.local.removal.purge(wanted, removed)


def purge(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete all messages of a state that nobody has."""
    context.check_epoch(arguments)
    state = arguments.text_or_none("state") or "active"
    removal = context.fragment.local.removal
    kinds: dict[str, Callable[[RemovalCriteria, OnRemoved], None]] = {
        "active": removal.purge,
        "deferred": removal.remove_deferred,
        "scheduled": removal.remove_scheduled,
    }
    if state not in kinds:
        raise InvalidArgument(f"state is {state!r:.60}; it can be {', '.join(kinds)}")
    kinds[state](RemovalCriteria(), _reply_with_counts(on_reply, "removed"))


def complete_up_to(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Complete active messages up to a sequence number; those that someone has are left."""
    context.check_epoch(arguments)
    _check_fragment(arguments)
    _check_entity_id(context, arguments)
    wanted = RemovalCriteria(max_sequence=arguments.whole_number("sequence-number", minimum=0))
    context.fragment.local.removal.remove_active(wanted, _reply_with_counts(on_reply, "completed"))


def delete_by_sequence_number(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete messages by their sequence numbers, whatever their state."""
    context.check_epoch(arguments)

    def removed(found: list[int] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            on_reply(failure(found))
        else:
            on_reply(success({"sequence-numbers": Array(int, [*sorted(found)])}))

    context.fragment.local.removal.remove_by_sequence(arguments.sequence_numbers(), removed)


def list_fragments(context: RequestContext, _arguments: Arguments, on_reply: OnReply) -> None:
    """From where to where each fragment's log reaches."""
    fragment = context.fragment.local
    holdings = fragment.message_table

    def told(purged: int | ServiceBusError) -> None:
        listed: dict[str, object] = {
            "fragment": fragment.number,
            "low-sequence-number": holdings.low_watermark,
            "next-sequence-number": holdings.committed.next_sequence,
            "message-count": holdings.committed.active_count,
            "is-available": fragment.can_deliver,
        }
        if isinstance(purged, int):
            listed["purged-sequence-number"] = purged
        on_reply(success({"entity-id": context.entity.entity_id, "fragments": [listed]}))

    if fragment.can_deliver:
        fragment.removal.find_purged_up_to(told)
    else:
        told(StoreUnavailable("its store does not work"))


def check_resubmission(context: RequestContext, arguments: Arguments) -> None:
    """InvalidArgument if it cannot be."""
    if context.sub_queue is not SubQueue.DEAD_LETTER:
        raise InvalidArgument(f"resubmit is for a dead-letter queue, and '{context.path}' is none")
    context.check_epoch(arguments)
    numbers = arguments.sequence_numbers()
    if len(numbers) > MAX_RESUBMIT:
        raise InvalidArgument(f"sequence-numbers has {len(numbers)} numbers; {MAX_RESUBMIT} can be resubmitted at once")
    if arguments.has("message") and len(numbers) > 1:
        raise InvalidArgument("message is the new contents of one message, and sequence-numbers has several")


def resubmit(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Make dead letters active again: all of them, or none; perhaps with other contents."""
    check_resubmission(context, arguments)
    edited = arguments.binary("message") if arguments.has("message") else None
    numbers = arguments.sequence_numbers()

    def resubmitted(found: list[int] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            on_reply(failure(found))
        else:
            on_reply(success({"sequence-numbers": Array(int, list(found))}))

    context.part.resubmit(numbers, edited, context.namespace.intake, resubmitted)


def _reply_with_counts(on_reply: OnReply, count_name: str) -> Callable[[RemovalResult | ServiceBusError], None]:
    def told(outcome: RemovalResult | ServiceBusError) -> None:
        if isinstance(outcome, ServiceBusError):
            on_reply(failure(outcome))
        else:
            on_reply(success({count_name: outcome.removed_count, "skipped": outcome.skipped_count}))

    return told


def _check_entity_id(context: RequestContext, arguments: Arguments) -> None:
    """Raise EntityNotFound if the caller means an entity of this path that was deleted: its numbers are used again."""
    found = context.entity.entity_id
    meant = arguments.whole_number("entity-id", minimum=0, default=found)
    if meant != found:
        raise EntityNotFound(f"'{context.path}' was deleted and created again: its id was {meant}, and is {found}")


def _check_fragment(arguments: Arguments) -> None:
    number = arguments.whole_number("fragment", minimum=0, default=0)
    if number:
        raise InvalidArgument(f"there is no fragment {number}: the entity has one, number 0")
