"""Operations on messages: peek, schedule, cancel, renew locks, settle, receive deferred messages, withhold."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import BODY_SECTIONS, Message, Section
from twinbus.amqp.types import Array, Timestamp
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.settlement import (
    Disposition,
    dead_letter_properties,
    lock_lost_error,
    session_lock_lost_error,
)
from twinbus.model.annotations import SCHEDULED_TIME
from twinbus.model.errors import InvalidArgument, MessageTooLarge, NotAllowed, ServiceBusError
from twinbus.server.amqp.management.responses import failure, no_content, reply_on_done, success
from twinbus.server.amqp.outgoing_link import string_properties

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply

    OnPeeked: TypeAlias = Callable[[list[bytes] | ServiceBusError], None]

MAX_WITHHELD_VALUES: Final = 1_000
MAX_WITHHELD_CHARACTERS: Final = 65_536
"""The maximum total length of the property name and all values in a withhold request."""


def withhold(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Withhold messages with one of the listed values in an application property, until the next such request."""
    context.check_is_exclusive_receiver()
    name, values = arguments.text("property"), arguments.text_list("values", max_items=MAX_WITHHELD_VALUES)
    if len(name) + sum([len(value) for value in values]) > MAX_WITHHELD_CHARACTERS:
        raise InvalidArgument(f"property and values have more than {MAX_WITHHELD_CHARACTERS} characters together")
    dispatcher = context.fragment.dispatcher
    if context.fragment.has_sessions:
        raise NotAllowed(f"'{context.path}' has sessions: its messages cannot be withheld")
    dispatcher.withhold(name, values)
    dispatcher.dispatch()
    on_reply(success({}))


MAX_PEEK_COUNT: Final = 1_000
MAX_PEEK_BYTES: Final = 524_288
_PEEK_LOCK: Final = 1
DISPOSITIONS: Final = {
    "completed": Disposition.COMPLETE,
    "abandoned": Disposition.ABANDON,
    "suspended": Disposition.DEAD_LETTER,
    "defered": Disposition.DEFER,
}


def peek(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Return messages from a sequence number on, from one session or all sessions; without bodies if requested."""
    omits_bodies = arguments.boolean("omit-message-body")
    start = arguments.whole_number("from-sequence-number", minimum=-(2**63))
    count = min(arguments.whole_number("message-count", minimum=1), MAX_PEEK_COUNT)
    session = arguments.session()

    def on_peeked(payloads: list[bytes] | ServiceBusError) -> None:
        if not isinstance(payloads, list):
            on_reply(failure(payloads))
        elif payloads:
            replied = [without_body(message) for message in payloads] if omits_bodies else payloads
            on_reply(success({"messages": [{"message": message} for message in replied]}))
        else:
            on_reply(no_content())

    browser = context.fragment.local.browser
    if session is not None and context.fragment.has_sessions:
        browser.peek_session(session, start, count, MAX_PEEK_BYTES, on_peeked)
    else:
        browser.peek(start, count, MAX_PEEK_BYTES, on_peeked, deferred_only=wants_deferred_only(arguments))


def wants_deferred_only(arguments: Arguments) -> bool:
    """Return whether only deferred messages are requested, a twinbus extension."""
    state = arguments.text_or_none("twinbus:state")
    if state not in (None, "deferred"):
        raise InvalidArgument(f"twinbus:state is {state!r:.60}; it must be 'deferred' or absent")
    return state is not None


def without_body(payload: bytes) -> bytes:
    """Return a message without its body."""
    message = Message(payload)
    return b"".join([message.raw(section) for section in Section if section not in BODY_SECTIONS])


def schedule(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Store messages for later delivery: all of them, or none."""
    numbers: list[int] = []

    def on_scheduled(error: ServiceBusError | None) -> None:
        if error is None:
            on_reply(success({"sequence-numbers": Array(int, list(numbers))}))
        else:
            on_reply(failure(error))

    context.sendable.send(parse_scheduled(context, arguments), on_scheduled, numbers)


def parse_scheduled(context: RequestContext, arguments: Arguments) -> IncomingBatch:
    """Return the messages to schedule as a batch. Raise a ServiceBusError if a message is invalid."""
    target, batch, namespace = context.sendable, IncomingBatch(), context.namespace
    now_ms = namespace.clock.wall_ms()
    payloads = [item.binary("message") for item in arguments.nested_list("messages")]
    _check_sizes(context, payloads, target.description.max_message_kb * 1024)
    for payload in payloads:
        namespace.intake.add_to(batch, payload, 0, now_ms, target.validation_policy)
        if not isinstance(Message(payload).lookup(Section.MESSAGE_ANNOTATIONS, SCHEDULED_TIME), Timestamp):
            raise InvalidArgument(f"a scheduled message needs the annotation {SCHEDULED_TIME} with a timestamp")
    if batch.ping_count:
        raise InvalidArgument("a ping cannot be scheduled")
    return batch


def _check_sizes(context: RequestContext, payloads: list[bytes], max_bytes: int) -> None:
    """Raise MessageTooLarge if a message exceeds the entity's limit, or all messages exceed the limit for a batch."""
    largest = max([len(payload) for payload in payloads])
    if largest > max_bytes:
        raise MessageTooLarge(f"a message has {largest} bytes; '{context.path}' accepts up to {max_bytes}")
    total, max_bytes = sum([len(payload) for payload in payloads]), context.namespace.limits.max_message_bytes
    if total > max_bytes:
        raise MessageTooLarge(f"the messages have {total} bytes in total; schedule at most {max_bytes} at once")


def find_scheduled(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Reply with success if all messages that the request names are scheduled."""
    context.fragment.local.schedule.check_scheduled(arguments.sequence_numbers(), reply_on_done(on_reply))


def cancel_scheduled(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Cancel scheduled messages: all of them, or none."""
    _ = context.sendable  # raises for a subscription
    context.fragment.local.schedule.cancel(arguments.sequence_numbers(), reply_on_done(on_reply))


def renew_lock(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Renew locks: all of them, or none if one is lost."""
    check_lock_renewal(context)
    settlement, numbers = context.fragment.local.settlement, _lock_numbers(context, arguments)
    if not all(settlement.is_lock_valid(number) for number in numbers):
        raise lock_lost_error()
    expirations: list[object] = [Timestamp(settlement.renew(number)) for number in numbers]
    on_reply(success({"expirations": Array(Timestamp, expirations)}))


def check_lock_renewal(context: RequestContext) -> None:
    """Raise NotAllowed if the entity has sessions, because its messages are locked together with their session."""
    if context.fragment.has_sessions:
        raise NotAllowed(
            f"'{context.path}' requires sessions: its messages are locked with their session. Renew the lock of the "
            "session."
        )


def receive_deferred(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Receive deferred messages by their sequence numbers: all of them, or none."""
    context.receivable.check_receive_enabled()
    context.check_may_receive(arguments)
    numbers = arguments.sequence_numbers()
    mode = arguments.whole_number("receiver-settle-mode", minimum=0, default=_PEEK_LOCK)
    if mode > _PEEK_LOCK:
        raise InvalidArgument(f"receiver-settle-mode is {mode}; it must be 0 (receive and delete) or 1 (peek-lock)")
    session, until_ms = arguments.session(), None
    if context.fragment.has_sessions:
        if session is None:
            raise InvalidArgument(f"'{context.path}' requires sessions: send the session-id of the messages")
        until_ms = context.session_lock_of(session).locked_until_ms
    else:
        session = None

    def on_received(messages: list[tuple[bytes, bytes]] | ServiceBusError) -> None:
        if isinstance(messages, ServiceBusError):
            on_reply(failure(messages))
        else:
            on_reply(success({"messages": [_received_item(message, token) for message, token in messages]}))

    context.fragment.local.deferral.receive(
        numbers,
        on_received,
        receive_and_delete=mode != _PEEK_LOCK,
        session_id=session,
        session_locked_until_ms=until_ms,
    )


def _received_item(message: bytes, lock_token: bytes) -> dict[str, object]:
    return {"message": message, "lock-token": uuid.UUID(bytes=lock_token)} if lock_token else {"message": message}


def update_disposition(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Settle messages by their lock tokens: all of them, or none if one lock is lost."""
    settlement, (disposition, properties) = context.fragment.settlement, parse_disposition(arguments)
    numbers = held_lock_numbers(context, arguments)
    if len(settlement.settle(disposition, numbers, reply_on_done(on_reply), properties)) == len(numbers):
        raise lock_lost_error()  # all locks have just expired, so `settle` does not call back


def parse_disposition(arguments: Arguments) -> tuple[Disposition, dict[str, object]]:
    """Return the requested disposition, and the message properties that it changes."""
    status = arguments.text("disposition-status")
    disposition = DISPOSITIONS.get(status)
    if disposition is None:
        raise InvalidArgument(f"disposition-status is {status!r:.60}; it must be one of {', '.join(DISPOSITIONS)}")
    properties = string_properties(arguments.mapping("properties-to-modify"))
    if disposition is Disposition.DEAD_LETTER:
        reason, description = [arguments.text_or_none(f"deadletter-{name}") for name in ("reason", "description")]
        properties |= dead_letter_properties(reason, description)
    return disposition, properties


def held_lock_numbers(context: RequestContext, arguments: Arguments) -> list[int]:
    """Return the sequence numbers of the messages whose locks the request names.

    Raise MessageLockLost or SessionLockLost if the caller does not hold one of the locks.

    A token is enough to settle a message, from any connection. A message in a session can only be settled by the
    connection that holds the session; the request need not name the session, but a wrong name is refused.
    """
    numbers, session = _lock_numbers(context, arguments), arguments.session()
    holders: dict[bytes, Consumer | None] = {}

    def holder_of(locked_session: bytes) -> Consumer | None:
        if session is not None and locked_session != session:
            return None
        if locked_session not in holders:
            holders[locked_session] = context.holder_of(locked_session)
        return holders[locked_session]

    if not all(context.fragment.settlement.is_lock_valid(number, holder_of) for number in numbers):
        raise lock_lost_error() if session is None else session_lock_lost_error(session)
    return numbers


def _lock_numbers(context: RequestContext, arguments: Arguments) -> list[int]:
    return context.fragment.lock_numbers([token.bytes for token in arguments.lock_tokens()])
