"""The gateway: what clients' connections are connected to.

Owns: who a client is (SASL, tokens), which entity or node each of its links is for, and when a link or connection that
nobody uses is ended. Messages are the business of `incoming` and `outgoing`, requests of `requests`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import CONNECTION_FORCED, DETACH_FORCED, UNAUTHORIZED_ACCESS, DecodeError
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    LinkDetached,
    SaslFailed,
    SaslInitReceived,
    SendsUpdated,
)
from twinbus.amqp.link import Link
from twinbus.amqp.performatives import Error
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import PLAIN, USUAL_MECHANISMS, SaslCode, read_plain
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.shared_input import SharedInput
from twinbus.amqp.terminus import Coordinator, Source, Target
from twinbus.broker.namespace import Queue
from twinbus.broker.ports.consumer import Card
from twinbus.broker.ports.fragment import PATIENCE_S
from twinbus.broker.ports.outage import Silence
from twinbus.model import path
from twinbus.model.errors import InvalidArgument, NotAllowed, QuotaExceeded, ServiceBusError, Unauthorized
from twinbus.model.path import SubQueue
from twinbus.server.access import Access
from twinbus.server.answers import error_of
from twinbus.server.browse_link import BrowseLink, BrowseShare
from twinbus.server.incoming import VIA, Incoming
from twinbus.server.keys import Right
from twinbus.server.login_log import LoginLog
from twinbus.server.management import Management
from twinbus.server.metering.meter import Meter
from twinbus.server.metering.tab import Tab
from twinbus.server.nodes import Nodes
from twinbus.server.operations.subject import Subject
from twinbus.server.outage_node import OutageSwitch
from twinbus.server.outgoing import Outgoing
from twinbus.server.pairing import PairingDesk, Pairings
from twinbus.server.plaintext import is_private
from twinbus.server.request_queue import RequestQueue
from twinbus.server.requests import ReplyLink, RequestLink, Terms, find_reply_link
from twinbus.server.revocation import Revocations
from twinbus.server.sas import LoginFailed
from twinbus.server.sdk_decimals import needs_them
from twinbus.server.session_link import SESSION_FILTER, SessionLink
from twinbus.server.silence import SilentLink
from twinbus.server.silence_limits import SilenceLimits, read_limit
from twinbus.server.spreading import SpreadIncoming
from twinbus.server.throttled_log import ThrottledLog
from twinbus.server.transactions import CoordinatorLink, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event
    from twinbus.amqp.performatives import Attach
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace, Subscription, Topic
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort
    from twinbus.server.administration import Administration
    from twinbus.server.authority import Authority
    from twinbus.server.metering.counter import Counter
    from twinbus.server.socket_room import Soon

    Use = Incoming | Outgoing | BrowseLink | RequestLink | ReplyLink | CoordinatorLink | SilentLink

log: Final = logging.getLogger(__name__)

IDLE_LOOK_S: Final = 30.0
"""How often a connection is looked at for links that nobody uses."""
NO_LINKS_S: Final = 300.0
"""A connection whose links are all gone is closed after this."""
EXPIRY_LOOK_S: Final = 60.0
"""How often the wall clock is asked whether a token has expired, at the least: it may be set forward."""
FIRST_DELIVERY_ID: Final = 2**28
"""Of what a session sends. pyamqp takes a disposition of a message that it received for one of a request that it sent
under the same id: it drops a request whose id a dead-lettered message has. Our ids are none that it gets to."""
EPOCH: Final = "com.microsoft:epoch"
"""A link property: the receiver wants the entity for itself."""
CLAIM_IF_FREE: Final = "twinbus:claim-if-free"
"""A link property, True: ... but takes nobody's place, whatever its epoch."""
ADDRESS_MAX_CHARACTERS: Final = 1_024
MAX_BROWSE_LINKS: Final = 500
"""Of one connection."""
SHORTEST_IDLE_TIMEOUT_MS: Final = 1_000
"""A client that wants to hear from us more often is refused: with a thousand of them there is time for nothing else."""

STRANGERS_INPUT_BYTES: Final = 33_554_432
"""Input held for all clients of this process together that have shown neither a key nor a token."""
STRANGER_FREE_BYTES: Final = 4_096
"""What each of them may have beyond that: a request with a token has about 1 KB, so nobody is kept from logging in."""

_WITHOUT_PASSWORD: Final = tuple(mechanism for mechanism in USUAL_MECHANISMS if mechanism != PLAIN)


def stranger_limits(limits: Limits) -> Limits:
    """What a client may make us hold before it has shown a key or a token.

    The SDKs need a session or two and both links to `$cbs` for that; one that negotiates for several entities at a time
    attaches a pair of links for each.
    """
    return replace(
        limits,
        max_sessions=16,
        max_links=32,
        max_attaches=500,
        max_assembling_bytes=1_048_576,
        max_unanswered_bytes=1_048_576,
    )


class Gateway:
    """What all connections of a server share."""

    def __init__(
        self,
        namespace: Namespace,
        administration: Administration,
        authority: Authority,
        *,
        name: str,
        soon: Soon,
        link_idle_s: float,
        token_timeout_s: float,
        meter: Meter | None = None,
    ) -> None:
        """`soon` makes a call in the next turn of the loop."""
        self.plaintext_passwords = False
        """Whether clients on other machines may use SASL PLAIN without TLS."""
        self.refused_sasl = ThrottledLog(log)
        self.meter = meter or Meter()
        self.namespace = namespace
        self.administration = administration
        self.authority = authority
        self.outage_switch = OutageSwitch(namespace.outages)
        self.pairings = PairingDesk(Pairings(namespace.clock, namespace.timers))
        self.soon = soon
        self.login_log = LoginLog(namespace.clock, namespace.timers, authority.knows)
        self.revocations = Revocations(soon)
        authority.on_reduced = self.revocations.revoke
        self.numbers = count(1)
        """Of clients and links, by which other processes know them."""
        self.link_idle_s = link_idle_s
        self.token_timeout_s = token_timeout_s
        limits = Limits(enforce_credit=False, max_message_size=namespace.limits.max_message_bytes)
        self._settings = Settings(
            container_id=name,
            properties={"product": "twinbus"},
            first_delivery_id=FIRST_DELIVERY_ID,
            shortest_idle_timeout_ms=SHORTEST_IDLE_TIMEOUT_MS,
            limits=limits,
            first_limits=stranger_limits(limits),
            first_input=SharedInput(max_bytes=STRANGERS_INPUT_BYTES, free_bytes=STRANGER_FREE_BYTES),
        )

    def make_connection(self, now: float) -> Connection:
        """For a socket that was accepted. Clients that have nothing but a token use no SASL at all."""
        return Connection.server(self._settings, now=now, require_sasl=False)

    def make_client(self, peer: Peer) -> Client:
        """For a socket that is there. Without TLS, a client on another machine is not asked for its key."""
        if not self.takes_passwords(peer):
            peer.connection.offer_mechanisms(_WITHOUT_PASSWORD)
        return Client(self, peer)

    def takes_passwords(self, peer: Peer) -> bool:
        """Whether a client may use SASL PLAIN on its connection."""
        return self.plaintext_passwords or is_private(peer.transport)


class Client:
    """One connection."""

    def __init__(self, gateway: Gateway, peer: Peer) -> None:
        """Nobody yet: it has to show a key or a token."""
        self.access = Access(gateway.authority.renewed, partial(gateway.revocations.watch, self))
        self._gateway = gateway
        self._number = next(gateway.numbers)
        self._namespace = gateway.namespace
        self._peer = peer
        self._transactions = Transactions(gateway.namespace)
        clock = gateway.namespace.clock
        self._queue = RequestQueue(peer, gateway.soon)
        self._nodes = Nodes(
            self.access,
            gateway.authority,
            clock,
            self._granted,
            self._login_failed,
            gateway.outage_switch,
            gateway.pairings,
            queue=self._queue,
        )
        self._share = BrowseShare(gateway.namespace.reads)
        self._browse_links = 0
        self._rewrites_decimals = False
        self._uses: dict[Link, Use] = {}
        self._silence = SilenceLimits(peer.connection)
        self._tab = Tab(gateway.meter)
        self._used_s = self._namespace.clock.monotonic_s()
        self._expiry_s = float("inf")
        self._timers: dict[str, Timer] = {}
        """By what they are for."""
        self._handlers: dict[type, Callable[[Event], None]] = {
            DeliveriesReceived: self._receive,
            SendsUpdated: self._settle,
            CreditGranted: self._credit,
            AttachRequested: self._attach,
            LinkDetached: self._detached,
            SaslInitReceived: self._authenticate,
            SaslFailed: self._sasl_refused,
            ConnectionOpened: self._opened,
            ConnectionClosed: self._closed,
        }

    def on_event(self, event: Event) -> None:
        """What the peer did; what is not in the table concerns nobody."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def on_writable(self) -> None:
        """The socket takes data again."""
        for use in list(self._uses.values()):
            if isinstance(use, Outgoing | BrowseLink):
                use.feed()
        self._queue.go_on()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _receive(self, event: Event) -> None:
        assert isinstance(event, DeliveriesReceived)
        use = event.link.context
        assert isinstance(use, Incoming | RequestLink | CoordinatorLink)
        use.receive(event.deliveries)

    def _settle(self, event: Event) -> None:
        assert isinstance(event, SendsUpdated)
        if isinstance(event.link.context, Outgoing):
            event.link.context.receive_settlement(event.deliveries, event.state, settled=event.settled)

    def _credit(self, event: Event) -> None:
        assert isinstance(event, CreditGranted)
        if isinstance(event.link.context, Outgoing | BrowseLink):
            event.link.context.receive_credit()
        elif isinstance(event.link.context, ReplyLink):
            self._queue.go_on()  # the session's window is open again: there may be room for answers

    # --- who it is ----------------------------------------------------------------------------------------------------

    def _authenticate(self, event: Event) -> None:
        assert isinstance(event, SaslInitReceived)
        connection = self._peer.connection
        if event.mechanism != PLAIN:
            connection.send_sasl_outcome()
            return
        try:
            name, secret = read_plain(event.initial_response or b"")
        except DecodeError:
            name, secret = "", ""
        grants = self._gateway.authority.check_password(name, secret)
        if not grants:
            failure = LoginFailed("the name or the secret of the key is wrong", "wrong key name or secret", (name,))
            self._gateway.login_log.note("sasl", self._address(), failure)
            connection.send_sasl_outcome(SaslCode.AUTH)
            return
        self.access.give_all(grants)
        connection.raise_limits()
        self._peer.authenticated()
        connection.send_sasl_outcome()

    def _sasl_refused(self, event: Event) -> None:
        """The client chose a mechanism that it was not offered."""
        assert isinstance(event, SaslFailed)
        if not self._gateway.takes_passwords(self._peer):
            self._gateway.refused_sasl.warning(
                "SASL of %s was refused: the client chose a mechanism that it was not offered. PLAIN is not offered to "
                "other machines without TLS, because it shows the key to the network: use TLS, or start the server "
                "with --plaintext amqp",
                self._address(),
            )

    def _login_failed(self, failure: LoginFailed) -> None:
        self._gateway.login_log.note("cbs", self._address(), failure)

    def _opened(self, event: Event) -> None:
        assert isinstance(event, ConnectionOpened)
        self._tab.open(event.open.properties)
        self._rewrites_decimals = needs_them(event.open.properties)
        log.debug("connection opened", extra={"client": self._address()})
        self._call_in("token", self._gateway.token_timeout_s, self._require_token)
        self._look_for_idle()

    def _call_in(self, purpose: str, wait_s: float, call: Callable[[], None]) -> None:
        """Make a call later, unless the connection ends before; it replaces one of the same purpose."""
        if purpose in self._timers:
            self._timers[purpose].cancel()
        when_s = self._namespace.clock.monotonic_s() + wait_s
        self._timers[purpose] = self._namespace.timers.call_at(when_s, call)

    def _require_token(self) -> None:
        if self.access.is_empty:
            seconds = self._gateway.token_timeout_s
            description = f"no valid token was put within {seconds:g} s of the connection's opening"
            self._peer.close(Error(condition=UNAUTHORIZED_ACCESS, description=description))

    def _granted(self) -> None:
        """A token was taken: when the first one ends, the links that lived on it do."""
        self._peer.connection.raise_limits()
        self._peer.authenticated()
        expiry_s = self.access.next_expiry_s
        if expiry_s < self._expiry_s:
            self._expiry_s = expiry_s
            self._watch_expiry()

    def _watch_expiry(self) -> None:
        wait_s = self._expiry_s - self._namespace.clock.wall_ms() / 1000
        self._call_in("expiry", min(max(0.0, wait_s), EXPIRY_LOOK_S), self._expire)

    def _expire(self) -> None:
        wall_s = self._namespace.clock.wall_ms() / 1000
        if wall_s < self._expiry_s:
            self._watch_expiry()
            return
        self.access.drop_expired(wall_s)
        for link, use in list(self._uses.items()):
            denied = self._denied(use)
            if denied is not None:
                text = f"no token for '{denied}' is valid any more: put a new one, and attach again"
                error = Error(condition=UNAUTHORIZED_ACCESS, description=text)
                if isinstance(use, SessionLink) and use.hold is None:
                    link.refuse(error)  # it still waits for its session
                else:
                    link.detach(error=error)
        self._expiry_s = float("inf")
        self._granted()

    def check_access(self) -> None:
        """A key that this connection uses has changed: end the links that it does not allow any more."""
        self.access.drop_revoked()
        for link, use in list(self._uses.items()):
            denied = self._refused(use)
            if denied is None:
                continue
            error = Unauthorized(f"no valid key or token allows the link to '{denied}' any more: its key was changed")
            if isinstance(use, Incoming | Outgoing | BrowseLink | RequestLink):
                use.entity_gone(error)
            else:
                link.detach(error=error_of(error))
            if isinstance(use, CoordinatorLink):
                use.detached()  # rolls back: the client may never answer the detach
        if self.access.is_empty:
            self._call_in("token", self._gateway.token_timeout_s, self._require_token)

    def _refused(self, use: Use) -> str | None:
        """What a link is for, if no grant allows it; other than `_denied` for links of every kind."""
        if isinstance(use, Incoming | Outgoing | BrowseLink):
            return self._denied(use)
        if use.path == path.CBS or isinstance(use, SilentLink):
            return None
        if isinstance(use, CoordinatorLink) or self._nodes.has(use.path):
            return use.path if self.access.is_empty else None
        return None if any(self.access.allows(right, f"{use.path}/$management") for right in Right) else use.path

    def _denied(self, use: Use) -> str | None:
        """What a link is for, and its client may not use any more."""
        if not isinstance(use, Incoming | Outgoing | BrowseLink):
            return None
        paths = [use.path]
        if isinstance(use, Incoming) and use.destination is not None:
            paths.append(use.destination)
        return next((one for one in paths if not self.access.allows(use.right, one)), None)

    # --- links --------------------------------------------------------------------------------------------------------

    def _attach(self, event: Event) -> None:
        assert isinstance(event, AttachRequested)
        link = event.link
        self._used_s = self._namespace.clock.monotonic_s()
        if link.is_over:  # its detach came in the same read
            return
        try:
            use = self._connect(link, event.attach)
        except Silence as silence:
            use, refusal = SilentLink(link, self._namespace.clock), error_of(silence)
            silence.outage.hold(use, lambda: link.refuse(refusal))
        except ServiceBusError as error:
            link.refuse(error_of(error))
            return
        link.context = use
        self._uses[link] = use

    def _connect(self, link: Link, attach: Attach) -> Use:
        if isinstance(attach.target, Coordinator) and isinstance(link, Receiver):
            if self.access.is_empty:
                raise Unauthorized("Unauthorized access. Transactions are for who has shown a key or a token.")
            return CoordinatorLink(link, self._transactions, self._namespace)
        terminus, kind = (attach.target, Target) if isinstance(link, Receiver) else (attach.source, Source)
        written = getattr(terminus, "address", None) if isinstance(terminus, kind) else None
        if not isinstance(written, str) or not written or len(written) > ADDRESS_MAX_CHARACTERS:
            raise InvalidArgument("a link needs an address: the path of an entity, its $management, or $cbs")
        if self._nodes.has(name := path.relative(written).lower()):
            return self._nodes.connect(link, name)
        address = path.parse(written)
        if address.is_management:
            return self._connect_management(link, address)
        return self._connect_entity(link, address, attach)

    def _connect_management(self, link: Link, address: path.Address) -> Use:
        if not any(self.access.allows(right, str(address)) for right in Right):
            raise Unauthorized(f"Unauthorized access. Some claim on '{address.path}' is required for its $management.")
        entity, clock = self._namespace.find(address.entity), self._namespace.clock
        where = f"{entity.path}{address.sub_queue.value}"
        if isinstance(link, Sender):
            return ReplyLink(link, where, clock)
        assert isinstance(link, Receiver)
        subject = Subject(
            self._namespace,
            self._gateway.administration,
            entity,
            address.sub_queue,
            self._find_session,
            self._is_mine,
            client=self._number,
        )
        node = Management(where, subject, self.access, self._tab.counter(self.access, where))
        terms = Terms(weigh=node.weigh)
        use = RequestLink(link, where, node, find_reply_link, clock, self._queue, self._transactions, terms=terms)
        use.rewrites_decimals = self._rewrites_decimals
        entity.producers.add(use)
        return use

    def _is_mine(self, consumer: Consumer) -> bool:
        """It is a link of this connection."""
        link = getattr(consumer, "link", None)
        return isinstance(link, Link) and self._uses.get(link) is consumer

    def _find_session(self, entity: Queue | Subscription, session: bytes) -> SessionLink | None:
        """The link of this connection that has a session."""
        links = [use for use in self._uses.values() if isinstance(use, SessionLink) and use.path == entity.path]
        return next((link for link in links if link.hold is not None and link.hold.session == session), None)

    def _connect_entity(self, link: Link, address: path.Address, attach: Attach) -> Use:
        if isinstance(link, Receiver):
            self.access.check(Right.SEND, address.path)
            target = self._namespace.find_sendable(address.entity)
            if address.sub_queue is not SubQueue.MAIN:
                raise NotAllowed(f"nothing can be sent to '{address.path}': a dead-letter queue is filled by its queue")
            target.check_sends()
            target.note_use(self._namespace.clock)
            destination = self._destination(attach, target)
            kind = SpreadIncoming if target.is_partitioned and destination is None else Incoming
            counter = self._tab.counter(self.access, target.path)
            return kind(link, self._namespace, target, self._transactions, destination, counter)
        assert isinstance(link, Sender)
        self.access.check(Right.LISTEN, address.path)
        source = self._namespace.find_receivable(address.entity)
        source.check_receives()
        source.note_use(self._namespace.clock)
        return self._connect_receiver(link, source, address.sub_queue, attach)

    def _destination(self, attach: Attach, via: Queue | Topic) -> str | None:
        """Where messages go on to, if their sender says so."""
        written = (attach.properties or {}).get(VIA)
        if written is None:
            return None
        if not isinstance(written, str) or len(written) > ADDRESS_MAX_CHARACTERS:
            raise InvalidArgument(f"{VIA} is {written!r:.60}; it is the path of an entity")
        destination = path.relative(written)
        self.access.check(Right.SEND, destination)
        found = self._namespace.find_sendable(destination)
        if not isinstance(via, Queue):
            raise NotAllowed(f"messages cannot be sent via '{via.path}': it is no queue")
        return found.path

    def _connect_receiver(self, link: Sender, source: Queue | Subscription, sub_queue: SubQueue, attach: Attach) -> Use:
        source.check_open(sub_queue)
        fragments, where = source.fragments_of(sub_queue), f"{source.path}{sub_queue.value}"
        clock, soon, counter = self._namespace.clock, self._gateway.soon, self._tab.counter(self.access, where)
        if getattr(attach.source, "distribution_mode", None) == "copy":
            return self._browse(link, where, fragments, source.entity_id, counter)
        has_sessions = fragments[0].has_sessions
        asks_session = SESSION_FILTER in (getattr(attach.source, "filter", None) or {})
        if asks_session and not has_sessions:
            raise NotAllowed(f"'{where}' has no sessions: receive from it without one")
        if not asks_session and has_sessions:
            raise NotAllowed(f"'{where}' requires sessions: accept one, by its id or the next that is free")
        claim = source.claim_of(sub_queue)
        properties = attach.properties or {}
        epoch, if_free, limit_ms = properties.get(EPOCH), properties.get(CLAIM_IF_FREE) is True, read_limit(properties)
        if epoch is None:
            claim.check_open(where)
        elif not isinstance(epoch, int) or isinstance(epoch, bool):
            raise InvalidArgument(f"{EPOCH} is {epoch!r:.60}; it is a whole number")
        else:
            others = any(fragment.line.consumers for fragment in fragments)
            claim.check(where, epoch, others=others, if_free=if_free)
            claim.displace(where, epoch, fragments)
        use: Outgoing
        card = Card(next(self._gateway.numbers), self._number, None if epoch is None else int(epoch), if_free=if_free)
        if epoch is not None and limit_ms is not None:
            link.on_accept = partial(self._silence.begin, link, limit_ms)
        if has_sessions:
            use = SessionLink(link, self._peer, where, fragments, self._namespace, soon, card, counter=counter)
        else:
            use = Outgoing(link, self._peer, where, fragments, clock, soon, card, counter=counter)
        if isinstance(epoch, int):
            claim.take(use, epoch, fragments)
        use.claim, use.source, use.transactions = claim, source, self._transactions
        use.rewrites_decimals = self._rewrites_decimals
        return use

    def _browse(
        self, link: Sender, where: str, fragments: Sequence[FragmentPort], entity_id: int, counter: Counter
    ) -> BrowseLink:
        if self._browse_links >= MAX_BROWSE_LINKS:
            text = f"the connection has {MAX_BROWSE_LINKS} browse links, its limit: detach some, or open another"
            raise QuotaExceeded(text)
        use = BrowseLink(
            link,
            self._peer,
            where,
            fragments,
            entity_id,
            self._gateway.soon,
            counter=counter,
            share=self._share,
        )
        self._browse_links += 1
        return use

    def _detached(self, event: Event) -> None:
        assert isinstance(event, LinkDetached)
        use = self._uses.pop(event.link, None)
        self._silence.end(event.link)
        self._namespace.outages.forget(use)
        self._used_s = self._namespace.clock.monotonic_s()
        if isinstance(use, Outgoing):
            use.detached(event.lost)
            self._wait_for(use.owners())
        elif isinstance(use, BrowseLink):
            self._browse_links -= 1
            use.detached()
        elif isinstance(use, Incoming | CoordinatorLink):
            use.detached()
        elif isinstance(use, RequestLink):
            self._forget_user(use)

    def _wait_for(self, owners: set[OwnerPort]) -> None:
        """Say nothing to the client before other processes know that it has left them.

        It takes the answer to its detach for a sign that another may have what it had. One that does not answer is
        waited for once: who opens and closes links all the time would else be told nothing at all.
        """
        silent = set(owners)
        if not silent:
            return
        release = self._peer.hold_output()

        def heard(owner: OwnerPort, _answer: object) -> None:
            silent.discard(owner)
            if not silent:
                release()

        def give_up() -> None:
            for owner in silent:
                owner.doubt()
            release()

        self._namespace.timers.call_at(self._namespace.clock.monotonic_s() + PATIENCE_S, give_up)
        for owner in owners:
            owner.confirm(partial(heard, owner))

    def _forget_user(self, use: RequestLink) -> None:
        entity = self._namespace.entities.get(path.key_of(path.parse(use.path).entity))
        if entity is not None:
            entity.producers.discard(use)

    # --- what nobody uses ---------------------------------------------------------------------------------------------

    def _look_for_idle(self) -> None:
        now_s, limit_s = self._namespace.clock.monotonic_s(), self._gateway.link_idle_s
        for link, use in list(self._uses.items()):
            if not use.is_busy and now_s - use.used_s > limit_s:
                text = f"the link to '{use.path}' was idle for {limit_s:g} s"
                link.detach(error=Error(condition=DETACH_FORCED, description=text))
        if not self._uses and now_s - self._used_s > min(NO_LINKS_S, limit_s):
            text = "the connection had no links for too long"
            self._peer.close(Error(condition=CONNECTION_FORCED, description=text))
            return
        self._call_in("idle", min(IDLE_LOOK_S, limit_s / 2), self._look_for_idle)

    def _closed(self, event: Event) -> None:
        assert isinstance(event, ConnectionClosed)
        for timer in self._timers.values():
            timer.cancel()
        self._tab.close()
        self._gateway.revocations.forget(self)
        if event.error is not None:
            extra = {"client": self._address(), "condition": event.error.condition, "reason": event.error.description}
            level = logging.DEBUG if self.access.is_empty else logging.INFO  # strangers cannot flood the log
            log.log(level, "connection ended", extra=extra)

    def _address(self) -> str:
        host = self._peer.transport.get_extra_info("peername")
        return f"{host[0]}:{host[1]}" if isinstance(host, tuple) else "unknown"
