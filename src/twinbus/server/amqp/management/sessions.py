"""Operations on sessions: their locks, their states, and which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.model.errors import InvalidArgument, MessageTooLarge, ServiceBusError
from twinbus.server.amqp.management.responses import failure, no_content, reply_on_done, success

if TYPE_CHECKING:
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply

ALL_SESSIONS_MS: Final = 253_402_300_799_000
"""From this time on (the end of the year 9999) all sessions are meant, whenever they were updated."""
MAX_LISTED_SESSIONS: Final = 1_000


def renew_session_lock(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Let the asker have its session for its lock duration from now."""
    hold = context.session_lock_of(_required_session(arguments))
    on_reply(success({"expiration": Timestamp(context.fragment.local.renew_session_lock(hold))}))


def set_session_state(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Let a session remember something, or nothing. What it remembers counts against the entity's quota."""
    session = _required_session(arguments)
    context.session_lock_of(session)
    state = arguments.binary("session-state") if arguments.has("session-state") else None
    most = context.namespace.limits.max_message_bytes
    if state is not None and len(state) > most:
        raise MessageTooLarge(f"a session state of {len(state)} bytes; it can have {most}")
    context.fragment.local.session_states.set(
        session, state, reply_on_done(on_reply), lambda: context.session_lock_of(session)
    )


def get_session_state(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """What a session remembers."""
    session = _required_session(arguments)
    context.session_lock_of(session)

    def got(state: bytes | ServiceBusError | None) -> None:
        on_reply(failure(state) if isinstance(state, ServiceBusError) else success({"session-state": state}))

    context.fragment.local.session_states.get(session, got)


def list_sessions(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Sessions with messages or a state; or those whose state was set since a time."""
    context.check_has_sessions()
    since_ms = arguments.whole_number("last-updated-time", minimum=-(2**63), default=ALL_SESSIONS_MS)
    skip = arguments.whole_number("skip", minimum=0, default=0)
    top = min(arguments.whole_number("top", minimum=1, default=MAX_LISTED_SESSIONS), MAX_LISTED_SESSIONS)

    def listed(found: list[bytes] | ServiceBusError) -> None:
        if isinstance(found, ServiceBusError):
            on_reply(failure(found))
        elif found:
            names: list[object] = [session.decode() for session in found]
            on_reply(success({"skip": Int(skip + len(found)), "sessions-ids": Array(str, names)}))
        else:
            on_reply(no_content())

    if since_ms >= ALL_SESSIONS_MS:
        context.fragment.local.session_states.list_all(skip, top, listed)
    else:
        context.fragment.local.session_states.list_updated(since_ms, skip, top, listed)


def _required_session(arguments: Arguments) -> bytes:
    session = arguments.session()
    if session is None:
        raise InvalidArgument("session-id is missing: it is the id of the session, a string")
    return session
