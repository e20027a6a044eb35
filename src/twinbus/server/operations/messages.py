"""Operations on messages: looking, scheduling, renewing, settling, receiving what was deferred."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import BODY_SECTIONS, Message, Section
from twinbus.amqp.types import Array, Timestamp
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.ports.settlement import How, lock_lost, reasons, session_lock_lost
from twinbus.model.annotations import SCHEDULED_TIME
from twinbus.model.errors import InvalidArgument, MessageTooLarge, NotAllowed, ServiceBusError
from twinbus.server.operations.outcomes import done, failure, nothing, success
from twinbus.server.outgoing import properties_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

    Peeked: TypeAlias = Callable[[list[bytes] | ServiceBusError], None]

PEEK_MAX_COUNT: Final = 1_000
PEEK_MAX_BYTES: Final = 524_288
_PEEK_LOCK: Final = 1
DISPOSITIONS: Final = {
    "completed": How.COMPLETE,
    "abandoned": How.ABANDON,
    "suspended": How.DEAD_LETTER,
    "defered": How.DEFER,
}


def peek(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Messages from a sequence number on, of a session or of all; without their bodies if nobody wants to see these."""
    omits_bodies = arguments.flag("omit-message-body")
    start = arguments.number("from-sequence-number", lowest=-(2**63))
    count = min(arguments.number("message-count", lowest=1), PEEK_MAX_COUNT)
    session = arguments.session()

    def peeked(found: list[bytes] | ServiceBusError) -> None:
        if not isinstance(found, list):
            reply(failure(found))
        elif found:
            shown = [without_body(message) for message in found] if omits_bodies else found
            reply(success({"messages": [{"message": message} for message in shown]}))
        else:
            reply(nothing())

    browsing = subject.fragment.local.browsing
    if session is not None and subject.fragment.has_sessions:
        browsing.peek_session(session, start, count, PEEK_MAX_BYTES, peeked)
    else:
        browsing.peek(start, count, PEEK_MAX_BYTES, peeked, deferred_only=only_deferred(arguments))


def only_deferred(arguments: Arguments) -> bool:
    """Our own addition: to find the few that were deferred among many."""
    state = arguments.text_or_none("twinbus:state")
    if state not in (None, "deferred"):
        raise InvalidArgument(f"twinbus:state is {state!r:.60}; it is deferred, or not given")
    return state is not None


def without_body(payload: bytes) -> bytes:
    """A message, all but what it says."""
    message = Message(payload)
    return b"".join([message.raw(section) for section in Section if section not in BODY_SECTIONS])


def schedule(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Store messages for later: all of them, or none."""
    numbers: list[int] = []

    def scheduled(error: ServiceBusError | None) -> None:
        if error is None:
            reply(success({"sequence-numbers": Array(int, list(numbers))}))
        else:
            reply(failure(error))

    subject.sendable.send(read_scheduled(subject, arguments), scheduled, numbers)


def read_scheduled(subject: Subject, arguments: Arguments) -> Parcel:
    """Messages that are to be stored for later."""
    target, parcel, namespace = subject.sendable, Parcel(), subject.namespace
    now_ms = namespace.clock.wall_ms()
    payloads = [item.binary("message") for item in arguments.maps("messages")]
    _check_sizes(subject, payloads, target.description.max_message_kb * 1024)
    for payload in payloads:
        namespace.intake.add_to(parcel, payload, 0, now_ms, target.terms)
        if not isinstance(Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, SCHEDULED_TIME), Timestamp):
            raise InvalidArgument(f"a message to be scheduled has the annotation {SCHEDULED_TIME}, a timestamp")
    if parcel.pings:
        raise InvalidArgument("a ping cannot be scheduled")
    return parcel


def _check_sizes(subject: Subject, payloads: list[bytes], most: int) -> None:
    """A message is no larger than its entity takes; all together are no larger than a batch may be."""
    largest = max([len(payload) for payload in payloads])
    if largest > most:
        raise MessageTooLarge(f"a message of {largest} bytes; '{subject.path}' takes {most}")
    total, most = sum([len(payload) for payload in payloads]), subject.namespace.limits.max_message_bytes
    if total > most:
        raise MessageTooLarge(f"messages of {total} bytes together; {most} can be scheduled at once")


def find_scheduled(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Whether all of these messages are scheduled."""
    subject.fragment.local.schedule.find(arguments.sequence_numbers(), done(reply))


def cancel(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Cancel scheduled messages: all of them, or none."""
    _ = subject.sendable  # raises for a subscription
    subject.fragment.local.schedule.cancel(arguments.sequence_numbers(), done(reply))


def renew_lock(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Renew locks: all of them, or none where one is lost."""
    check_renews(subject)
    settlement, numbers = subject.fragment.local.settlement, _lock_numbers(subject, arguments)
    if not all(settlement.holds(number) for number in numbers):
        raise lock_lost()
    expirations: list[object] = [Timestamp(settlement.renew(number)) for number in numbers]
    reply(success({"expirations": Array(Timestamp, expirations)}))


def check_renews(subject: Subject) -> None:
    """NotAllowed where messages are locked as long as their sessions."""
    if subject.fragment.has_sessions:
        raise NotAllowed(
            f"'{subject.path}' requires sessions: its messages are locked as long as their session. Renew the lock of "
            "the session."
        )


def receive_deferred(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Deferred messages by their sequence numbers: all of them, or none."""
    subject.receivable.check_receives()
    subject.check_receives(arguments)
    numbers = arguments.sequence_numbers()
    mode = arguments.number("receiver-settle-mode", lowest=0, default=_PEEK_LOCK)
    if mode > _PEEK_LOCK:
        raise InvalidArgument(f"receiver-settle-mode is {mode}; it is 0 (receive and delete) or 1 (peek-lock)")
    session, until_ms = arguments.session(), None
    if subject.fragment.has_sessions:
        if session is None:
            raise InvalidArgument(f"'{subject.path}' requires sessions: name the one of the messages by session-id")
        until_ms = subject.hold_of(session).until_ms
    else:
        session = None

    def received(found: list[tuple[bytes, bytes]] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            reply(failure(found))
        else:
            reply(success({"messages": [_received(message, token) for message, token in found]}))

    subject.fragment.local.deferral.receive(
        numbers, received, deletes=mode != _PEEK_LOCK, session=session, session_until_ms=until_ms
    )


def _received(message: bytes, token: bytes) -> dict[str, object]:
    return {"message": message, "lock-token": uuid.UUID(bytes=token)} if token else {"message": message}


def update_disposition(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Settle messages by their lock tokens: all of them, or none where one lock is lost."""
    settlement, (how, properties) = subject.fragment.settlement, read_disposition(arguments)
    numbers = held_numbers(subject, arguments)
    if len(settlement.settle(how, numbers, done(reply), properties)) == len(numbers):
        raise lock_lost()  # they expired a moment ago, so nobody else answers


def read_disposition(arguments: Arguments) -> tuple[How, dict[str, object]]:
    """How messages are to be settled, and which of their properties that changes."""
    status = arguments.text("disposition-status")
    how = DISPOSITIONS.get(status)
    if how is None:
        raise InvalidArgument(f"disposition-status is {status!r:.60}; it can be {', '.join(DISPOSITIONS)}")
    properties = properties_of(arguments.mapping("properties-to-modify"))
    if how is How.DEAD_LETTER:
        reason, description = [arguments.text_or_none(f"deadletter-{name}") for name in ("reason", "description")]
        properties |= reasons(reason, description)
    return how, properties


def held_numbers(subject: Subject, arguments: Arguments) -> list[int]:
    """The locks that are named. MessageLockLost or SessionLockLost if one of them is not the caller's.

    A token is enough to settle a message, from any connection. A message of a session is settled by the connection that
    holds the session: whether the request names the session is up to the client, but a wrong name is refused.
    """
    numbers, session = _lock_numbers(subject, arguments), arguments.session()
    holders: dict[bytes, Consumer | None] = {}

    def holder_of(locked: bytes) -> Consumer | None:
        if session is not None and locked != session:
            return None
        if locked not in holders:
            holders[locked] = subject.holder_of(locked)
        return holders[locked]

    if not all(subject.fragment.settlement.holds(number, holder_of) for number in numbers):
        raise lock_lost() if session is None else session_lock_lost(session)
    return numbers


def _lock_numbers(subject: Subject, arguments: Arguments) -> list[int]:
    return subject.fragment.lock_numbers([token.bytes for token in arguments.tokens()])
