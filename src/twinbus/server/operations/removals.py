"""Operations that delete messages nobody has, bring dead letters back, or are for who reads a queue as a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int
from twinbus.broker.ports.removal import READ_TOGETHER, Outcome, Wanted
from twinbus.model.errors import EntityNotFound, InvalidArgument, ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.server.operations.outcomes import failure, nothing, success

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.removal import Done
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

BATCH_DELETE_MAX: Final = 4_000
RESUBMIT_MAX: Final = READ_TOGETHER
"""They move together, so they are read together."""


def batch_delete(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Delete the oldest active messages."""
    subject.check_claim(arguments)
    wanted = Wanted(
        most=min(arguments.number("message-count", lowest=1), BATCH_DELETE_MAX),
        before_ms=arguments.number("enqueued-time-utc", lowest=-(2**63), default=2**63),
        session=arguments.session(),
    )

    def removed(outcome: Outcome | ServiceBusError) -> None:
        if isinstance(outcome, ServiceBusError):
            reply(failure(outcome))
        elif outcome.removed:
            reply(success({"message-count": Int(outcome.removed)}))
        else:
            reply(nothing({"message-count": Int(0)}))

    subject.fragment.local.removal.purge(wanted, removed)


def purge(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Delete all messages of a state that nobody has."""
    subject.check_claim(arguments)
    state = arguments.text_or_none("state") or "active"
    removal = subject.fragment.local.removal
    kinds: dict[str, Callable[[Wanted, Done], None]] = {
        "active": removal.purge,
        "deferred": removal.remove_deferred,
        "scheduled": removal.remove_scheduled,
    }
    if state not in kinds:
        raise InvalidArgument(f"state is {state!r:.60}; it can be {', '.join(kinds)}")
    kinds[state](Wanted(), _counted(reply, "removed"))


def complete_up_to(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Complete active messages up to a sequence number; those that someone has are left."""
    subject.check_claim(arguments)
    _check_fragment(arguments)
    _check_entity(subject, arguments)
    wanted = Wanted(up_to=arguments.number("sequence-number", lowest=0))
    subject.fragment.local.removal.remove_active(wanted, _counted(reply, "completed"))


def delete_numbers(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Delete messages by their sequence numbers, whatever their state."""
    subject.check_claim(arguments)

    def removed(found: list[int] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            reply(failure(found))
        else:
            reply(success({"sequence-numbers": Array(int, [*sorted(found)])}))

    subject.fragment.local.removal.remove_numbers(arguments.sequence_numbers(), removed)


def list_fragments(subject: Subject, _arguments: Arguments, reply: Reply) -> None:
    """From where to where each fragment's log reaches."""
    fragment = subject.fragment.local
    holdings = fragment.holdings

    def told(purged: int | ServiceBusError) -> None:
        listed: dict[str, object] = {
            "fragment": fragment.number,
            "low-sequence-number": holdings.low,
            "next-sequence-number": holdings.shown.next,
            "message-count": holdings.shown.active_count,
            "is-available": fragment.may_hand_out,
        }
        if isinstance(purged, int):
            listed["purged-sequence-number"] = purged
        reply(success({"entity-id": subject.entity.entity_id, "fragments": [listed]}))

    if fragment.may_hand_out:
        fragment.removal.find_purged(told)
    else:
        told(StoreUnavailable("its store does not work"))


def check_resubmission(subject: Subject, arguments: Arguments) -> None:
    """InvalidArgument if it cannot be."""
    if subject.sub_queue is not SubQueue.DEAD_LETTER:
        raise InvalidArgument(f"resubmit is for a dead-letter queue, and '{subject.path}' is none")
    subject.check_claim(arguments)
    numbers = arguments.sequence_numbers()
    if len(numbers) > RESUBMIT_MAX:
        raise InvalidArgument(f"sequence-numbers has {len(numbers)} numbers; {RESUBMIT_MAX} can be resubmitted at once")
    if arguments.has("message") and len(numbers) > 1:
        raise InvalidArgument("message is the new contents of one message, and sequence-numbers has several")


def resubmit(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Make dead letters active again: all of them, or none; perhaps with other contents."""
    check_resubmission(subject, arguments)
    edited = arguments.binary("message") if arguments.has("message") else None
    numbers = arguments.sequence_numbers()

    def resubmitted(found: list[int] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            reply(failure(found))
        else:
            reply(success({"sequence-numbers": Array(int, list(found))}))

    subject.part.resubmit(numbers, edited, subject.namespace.intake, resubmitted)


def _counted(reply: Reply, name: str) -> Callable[[Outcome | ServiceBusError], None]:
    def told(outcome: Outcome | ServiceBusError) -> None:
        if isinstance(outcome, ServiceBusError):
            reply(failure(outcome))
        else:
            reply(success({name: outcome.removed, "skipped": outcome.skipped}))

    return told


def _check_entity(subject: Subject, arguments: Arguments) -> None:
    """Raise EntityNotFound if the caller means an entity of this path that was deleted: its numbers are used again."""
    found = subject.entity.entity_id
    meant = arguments.number("entity-id", lowest=0, default=found)
    if meant != found:
        raise EntityNotFound(f"'{subject.path}' was deleted and created again: its id was {meant}, and is {found}")


def _check_fragment(arguments: Arguments) -> None:
    number = arguments.number("fragment", lowest=0, default=0)
    if number:
        raise InvalidArgument(f"there is no fragment {number}: the entity has one, number 0")
