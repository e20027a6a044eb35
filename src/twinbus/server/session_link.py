"""A link on which a client receives the messages of one session.

Owns: the wait for a session, and what the client is told of the one it has. The rest is as on any link that receives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Symbol
from twinbus.broker.ports.gathering import Gathering
from twinbus.broker.ports.settlement import session_lock_lost
from twinbus.model.errors import (
    ArgumentOutOfRange,
    InvalidArgument,
    LinkStolen,
    OperationTimeout,
    ServiceBusError,
)
from twinbus.model.partition_key import fragment_of
from twinbus.server.answers import error_of
from twinbus.server.outgoing import Outgoing, source_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.sender import Sender
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.ports.consumer import Card
    from twinbus.broker.ports.fragment import FragmentPort, Hold
    from twinbus.server.metering.counter import Counter
    from twinbus.server.socket_room import Soon

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT: Final = "com.microsoft:timeout"
WAIT_S: Final = 65.0
"""How long a client waits for any session that is free, if it does not say."""
WAIT_MAX_S: Final = 3_600.0
_TICKS_TO_1970: Final = 621_355_968_000_000_000
_TICKS_A_MS: Final = 10_000


class SessionLink(Outgoing):
    """Messages from one session to one link."""

    def __init__(
        self,
        link: Sender,
        peer: Peer,
        path: str,
        fragments: Sequence[FragmentPort],
        namespace: Namespace,
        soon: Soon,
        card: Card | None = None,
        *,
        counter: Counter | None = None,
    ) -> None:
        """Accepted once it has a session."""
        self.hold: Hold | None = None
        self._max_characters = namespace.limits.max_id_characters
        self._timers = namespace.timers
        self._patience: Timer | None = None
        super().__init__(link, peer, path, fragments, namespace.clock, soon, card, counter=counter)

    @property
    def is_busy(self) -> bool:
        """It waits for a session, or has one: its lock says how long."""
        return True

    def _enter(self) -> None:
        session = asked_session(self.link, self._max_characters)
        if session is None:
            self._accept_any()
            return
        fragments = self._gathering.fragments
        self._gathering = Gathering([fragments[0] if len(fragments) == 1 else fragments[fragment_of(session)]])
        self._gathering.fragments[0].line.accept(self, session, self._granted)

    def _accept_any(self) -> None:
        """Wait for a session of any fragment, also of one that does not work now; the first that has one is the one."""
        fragments = self._gathering.begin()
        if not any(fragment.is_available for fragment in fragments):
            fragments[0].check_works()
            fragments[0].check_loaded()
        for fragment in fragments:
            fragment.line.wait(self, self._granted)
            if self.hold is not None:
                return
        self._patience = self._timers.call_at(self._clock.monotonic_s() + self._wait_s(), self._give_up)

    def _stop_waiting(self) -> None:
        for fragment in self._gathering.fragments:
            fragment.line.give_up(self)

    def _wait_s(self) -> float:
        attach = self.link.remote_attach
        wanted = (attach.properties or {}).get(TIMEOUT) if attach is not None else None
        return min(max(0.0, wanted / 1000), WAIT_MAX_S) if isinstance(wanted, int) else WAIT_S

    def _granted(self, hold: Hold) -> None:
        self.hold = hold
        self._settle_on(hold)
        if self._patience is not None:
            self._patience.cancel()
        source = source_with(self.link, {SESSION_FILTER: hold.session.decode()})
        ticks = hold.until_ms * _TICKS_A_MS + _TICKS_TO_1970
        self.link.accept(source=source, properties={LOCKED_UNTIL: ticks})
        self.feed()

    def _settle_on(self, hold: Hold) -> None:
        """The fragment that has its session is the only one for it from now on."""
        for fragment in self._gathering.fragments:
            if fragment.line.gave(hold):
                self._gathering = Gathering([fragment])
            else:
                fragment.line.give_up(self)

    def _give_up(self) -> None:
        if self.hold is None and not self.is_gone:
            self.is_gone = True
            self._counter.empty_receives += 1
            self._stop_waiting()
            text = f"No session of '{self.path}' became free in time: accept one again."
            self.link.refuse(error_of(OperationTimeout(text)))

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or the session lost."""
        if self.is_gone:
            return  # another fragment of it has said so
        self.is_gone = True
        self._give_up_claim()
        if self.hold is None:
            self._stop_waiting()
            self.link.refuse(error_of(error))
        else:
            self.link.detach(error=error_of(error))
        if isinstance(error, LinkStolen):
            self._gathering.remove(self)

    def detached(self, _lost: list[OutgoingDelivery]) -> None:
        """The link is over: the session is free, and what was out is there again, uncounted."""
        self.is_gone = True
        self._end_credit()
        if self._patience is not None:
            self._patience.cancel()
        self._gathering.remove(self)
        self._give_up_claim()

    def _lost(self) -> ServiceBusError:
        return session_lock_lost(self.hold.session if self.hold is not None else b"")


def asked_session(link: Sender, most: int) -> bytes | None:
    """The session that a client wants; None if any. Its id has `most` characters at most."""
    source = link.remote_attach.source if link.remote_attach is not None else None
    asked = (getattr(source, "filter", None) or {}).get(SESSION_FILTER)
    asked = getattr(asked, "value", asked)  # some clients describe it
    if asked is None:
        return None
    if not isinstance(asked, str):
        raise InvalidArgument("the session filter is the session's id, a string, or null for any")
    if len(asked) > most:
        raise ArgumentOutOfRange(f"a session id of {len(asked)} characters; it can have {most}")
    return asked.encode()
