"""A link on which a client receives the messages of one session.

Owns: the wait for a session, and the properties of the session in the attach. `OutgoingLink` does everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Symbol
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.model.errors import (
    ArgumentOutOfRange,
    InvalidArgument,
    LinkStolen,
    OperationTimeout,
    ServiceBusError,
)
from twinbus.model.partition_key import fragment_of
from twinbus.server.amqp.errors import to_amqp_error
from twinbus.server.amqp.outgoing_link import OutgoingLink, accepted_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.sender import Sender
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.ports.consumer import ReceiverIdentity
    from twinbus.broker.ports.fragment import FragmentPort, SessionLock
    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.usage.counter import UsageCounter

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL_PROPERTY: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT_PROPERTY: Final = "com.microsoft:timeout"
DEFAULT_SESSION_WAIT_S: Final = 65.0
"""How long a client waits for any available session unless it sets a timeout."""
MAX_SESSION_WAIT_S: Final = 3_600.0
_TICKS_AT_UNIX_EPOCH: Final = 621_355_968_000_000_000
_TICKS_PER_MS: Final = 10_000


class SessionLink(OutgoingLink):
    """The server's end of a link on which a client receives the messages of one session."""

    def __init__(
        self,
        link: Sender,
        peer: Peer,
        path: str,
        fragments: Sequence[FragmentPort],
        namespace: Namespace,
        call_soon: CallSoon,
        receiver_identity: ReceiverIdentity | None = None,
        *,
        counter: UsageCounter | None = None,
    ) -> None:
        """Request a session; the link is accepted when the session is granted."""
        self.session_lock: SessionLock | None = None
        self._max_id_characters = namespace.limits.max_id_characters
        self._timers = namespace.timers
        self._wait_timer: Timer | None = None
        super().__init__(link, peer, path, fragments, namespace.clock, call_soon, receiver_identity, counter=counter)

    @property
    def is_busy(self) -> bool:
        """Always True, because the wait for a session and the session lock have time limits of their own."""
        return True

    def _register(self) -> None:
        session = requested_session(self.link, self._max_id_characters)
        if session is None:
            self._accept_next_session()
            return
        fragments = self._multi_receiver.fragments
        self._multi_receiver = MultiFragmentReceiver(
            [fragments[0] if len(fragments) == 1 else fragments[fragment_of(session)]]
        )
        self._multi_receiver.fragments[0].dispatcher.accept_session(self, session, self._on_session_granted)

    def _accept_next_session(self) -> None:
        """Wait for the first available session in any fragment, including fragments that are down now."""
        fragments = self._multi_receiver.begin_rotation()
        if not any(fragment.is_available for fragment in fragments):
            fragments[0].check_available()
            fragments[0].check_loaded()
        for fragment in fragments:
            fragment.dispatcher.accept_next_session(self, self._on_session_granted)
            if self.session_lock is not None:
                return
        self._wait_timer = self._timers.call_at(
            self._clock.monotonic_s() + self._requested_wait_s(), self._on_wait_timeout
        )

    def _stop_waiting(self) -> None:
        for fragment in self._multi_receiver.fragments:
            fragment.dispatcher.cancel_accept(self)

    def _requested_wait_s(self) -> float:
        attach = self.link.remote_attach
        timeout_ms = (attach.properties or {}).get(TIMEOUT_PROPERTY) if attach is not None else None
        return (
            min(max(0.0, timeout_ms / 1000), MAX_SESSION_WAIT_S)
            if isinstance(timeout_ms, int)
            else DEFAULT_SESSION_WAIT_S
        )

    def _on_session_granted(self, session_lock: SessionLock) -> None:
        self.session_lock = session_lock
        self._bind_fragment(session_lock)
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        source = accepted_source(self.link, {SESSION_FILTER: session_lock.session_id.decode()})
        ticks = session_lock.locked_until_ms * _TICKS_PER_MS + _TICKS_AT_UNIX_EPOCH
        self.link.accept(source=source, properties={LOCKED_UNTIL_PROPERTY: ticks})
        self._use_credit()

    def _bind_fragment(self, session_lock: SessionLock) -> None:
        """Keep only the fragment that owns the session, and stop waiting at the other fragments."""
        for fragment in self._multi_receiver.fragments:
            if fragment.dispatcher.owns_session_lock(session_lock):
                self._multi_receiver = MultiFragmentReceiver([fragment])
            else:
                fragment.dispatcher.cancel_accept(self)

    def _on_wait_timeout(self) -> None:
        if self.session_lock is None and not self.is_closed:
            self.is_closed = True
            self._counter.empty_receives += 1
            self._stop_waiting()
            text = f"No session of '{self.path}' became available in time: try to accept one again."
            self.link.refuse(to_amqp_error(OperationTimeout(text)))

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach or refuse the link with an error. The entity was deleted or disabled, or the session was lost."""
        if self.is_closed:
            return  # another fragment has detached the link already
        self.is_closed = True
        self._leave_exclusive_receiver()
        if self.session_lock is None:
            self._stop_waiting()
            self.link.refuse(to_amqp_error(error))
        else:
            self.link.detach(error=to_amqp_error(error))
        if isinstance(error, LinkStolen):
            self._multi_receiver.remove(self)

    def on_detached(self, _lost: list[OutgoingDelivery]) -> None:
        """Release the session; its locked messages become available again without a higher delivery count."""
        self.is_closed = True
        self._count_empty_receive()
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        self._multi_receiver.remove(self)
        self._leave_exclusive_receiver()

    def _lock_lost_error(self) -> ServiceBusError:
        return session_lock_lost_error(self.session_lock.session_id if self.session_lock is not None else b"")


def requested_session(link: Sender, max_characters: int) -> bytes | None:
    """Return the id of the session that a client requests; None for any session.

    Raise ArgumentOutOfRange if the id has more than `max_characters` characters.
    """
    source = link.remote_attach.source if link.remote_attach is not None else None
    session_id = (getattr(source, "filter", None) or {}).get(SESSION_FILTER)
    session_id = getattr(session_id, "value", session_id)  # some clients send a described value
    if session_id is None:
        return None
    if not isinstance(session_id, str):
        raise InvalidArgument("the session filter must be a session id as a string, or null for any session")
    if len(session_id) > max_characters:
        raise ArgumentOutOfRange(f"the session id has {len(session_id)} characters (limit: {max_characters})")
    return session_id.encode()
