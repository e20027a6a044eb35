"""Operations on sessions: their locks, their states, and which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.model.errors import InvalidArgument, MessageTooLarge, ServiceBusError
from twinbus.server.operations.outcomes import done, failure, nothing, success

if TYPE_CHECKING:
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

ALL_SESSIONS_MS: Final = 253_402_300_799_000
"""From this time on (the end of the year 9999) all sessions are meant, whenever they were updated."""
LIST_MAX: Final = 1_000


def renew(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Let the asker have its session for its lock duration from now."""
    hold = subject.hold_of(_session(arguments))
    reply(success({"expiration": Timestamp(subject.fragment.local.renew_session(hold))}))


def set_state(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Let a session remember something, or nothing. What it remembers counts against the entity's quota."""
    session = _session(arguments)
    subject.hold_of(session)
    state = arguments.binary("session-state") if arguments.has("session-state") else None
    most = subject.namespace.limits.max_message_bytes
    if state is not None and len(state) > most:
        raise MessageTooLarge(f"a session state of {len(state)} bytes; it can have {most}")
    subject.fragment.local.session_states.set(session, state, done(reply), lambda: subject.hold_of(session))


def get_state(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """What a session remembers."""
    session = _session(arguments)
    subject.hold_of(session)

    def got(state: bytes | ServiceBusError | None) -> None:
        reply(failure(state) if isinstance(state, ServiceBusError) else success({"session-state": state}))

    subject.fragment.local.session_states.get(session, got)


def list_sessions(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Sessions with messages or a state; or those whose state was set since a time."""
    subject.check_sessions()
    since_ms = arguments.number("last-updated-time", lowest=-(2**63), default=ALL_SESSIONS_MS)
    skip = arguments.number("skip", lowest=0, default=0)
    top = min(arguments.number("top", lowest=1, default=LIST_MAX), LIST_MAX)

    def listed(found: list[bytes] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            reply(failure(found))
        elif found:
            names: list[object] = [session.decode() for session in found]
            reply(success({"skip": Int(skip + len(found)), "sessions-ids": Array(str, names)}))
        else:
            reply(nothing())

    if since_ms >= ALL_SESSIONS_MS:
        subject.fragment.local.session_states.list_all(skip, top, listed)
    else:
        subject.fragment.local.session_states.list_updated(since_ms, skip, top, listed)


def _session(arguments: Arguments) -> bytes:
    session = arguments.session()
    if session is None:
        raise InvalidArgument("session-id is missing: it is the id of the session, a string")
    return session
