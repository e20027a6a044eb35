"""Operations on sessions: renew a session lock, get and set the state, list sessions."""

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
"""The end of the year 9999. With this or a later time, all sessions are listed, not only recently updated sessions."""
MAX_LISTED_SESSIONS: Final = 1_000


def renew_session_lock(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Renew the caller's lock on a session for the lock duration."""
    session_lock = context.session_lock_of(_required_session(arguments))
    on_reply(success({"expiration": Timestamp(context.fragment.local.renew_session_lock(session_lock))}))


def set_session_state(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Set or clear the state of a session, which counts against the entity's quota."""
    session = _required_session(arguments)
    context.session_lock_of(session)
    state = arguments.binary("session-state") if arguments.has("session-state") else None
    max_bytes = context.namespace.limits.max_message_bytes
    if state is not None and len(state) > max_bytes:
        raise MessageTooLarge(f"the session state has {len(state)} bytes (limit: {max_bytes})")
    context.fragment.local.session_states.set(
        session, state, reply_on_done(on_reply), lambda: context.session_lock_of(session)
    )


def get_session_state(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Return the state of a session."""
    session = _required_session(arguments)
    context.session_lock_of(session)

    def on_state(state: bytes | ServiceBusError | None) -> None:
        on_reply(failure(state) if isinstance(state, ServiceBusError) else success({"session-state": state}))

    context.fragment.local.session_states.get(session, on_state)


def list_sessions(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """List the sessions that have messages or a state, or the sessions whose state was set since a given time."""
    context.check_has_sessions()
    since_ms = arguments.whole_number("last-updated-time", minimum=-(2**63), default=ALL_SESSIONS_MS)
    skip = arguments.whole_number("skip", minimum=0, default=0)
    top = min(arguments.whole_number("top", minimum=1, default=MAX_LISTED_SESSIONS), MAX_LISTED_SESSIONS)

    def on_listed(session_ids: list[bytes] | ServiceBusError) -> None:
        if isinstance(session_ids, ServiceBusError):
            on_reply(failure(session_ids))
        elif session_ids:
            names: list[object] = [session.decode() for session in session_ids]
            on_reply(success({"skip": Int(skip + len(session_ids)), "sessions-ids": Array(str, names)}))
        else:
            on_reply(no_content())

    if since_ms >= ALL_SESSIONS_MS:
        context.fragment.local.session_states.list_all(skip, top, on_listed)
    else:
        context.fragment.local.session_states.list_updated(since_ms, skip, top, on_listed)


def _required_session(arguments: Arguments) -> bytes:
    session = arguments.session()
    if session is None:
        raise InvalidArgument("session-id is missing: send the id of the session as a string")
    return session
