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
from twinbus.amqp.settings import Limits, Settings, UnauthenticatedInput
from twinbus.amqp.terminus import Coordinator, Source, Target
from twinbus.broker.namespace import Queue
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.fragment import OWNER_TIMEOUT_S
from twinbus.broker.ports.outage import SilentOutage
from twinbus.model import path
from twinbus.model.errors import InvalidArgument, NotAllowed, QuotaExceeded, ServiceBusError, Unauthorized
from twinbus.model.path import SubQueue
from twinbus.server.amqp.browse_link import BrowseBudget, BrowseLink
from twinbus.server.amqp.errors import UnansweredLink, to_amqp_error
from twinbus.server.amqp.incoming_link import TRANSFER_DESTINATION, IncomingLink, PartitionedIncomingLink
from twinbus.server.amqp.management.node import ManagementNode
from twinbus.server.amqp.management.request_context import RequestContext
from twinbus.server.amqp.namespace_nodes import NamespaceNodes
from twinbus.server.amqp.outage_node import OutageSwitch
from twinbus.server.amqp.outgoing_link import OutgoingLink
from twinbus.server.amqp.request_link import ReplyLink, RequestLimits, RequestLink, RequestQueue, find_reply_link
from twinbus.server.amqp.sdk_decimals import is_python_sdk
from twinbus.server.amqp.session_link import SESSION_FILTER, SessionLink
from twinbus.server.amqp.silence_limits import SilenceLimits, read_silence_limit
from twinbus.server.amqp.transactions import CoordinatorLink, Transactions
from twinbus.server.auth.grants import ConnectionGrants
from twinbus.server.auth.keys import Right
from twinbus.server.auth.login_log import LoginLog
from twinbus.server.auth.revocation import Revocations
from twinbus.server.auth.sas import LoginFailed
from twinbus.server.paired_clients.report_store import PairingReports, ReportStore
from twinbus.server.runtime.logs import ThrottledLog
from twinbus.server.tls.plaintext import is_confidential
from twinbus.server.usage.meter import ConnectionUsage, UsageMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event
    from twinbus.amqp.performatives import Attach
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace, Subscription, Topic
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort
    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.auth.key_registry import KeyRegistry
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.usage.counter import UsageCounter

    LinkHandler = IncomingLink | OutgoingLink | BrowseLink | RequestLink | ReplyLink | CoordinatorLink | UnansweredLink

log: Final = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_S: Final = 30.0
"""How often a connection is looked at for links that nobody uses."""
NO_LINKS_TIMEOUT_S: Final = 300.0
"""A connection whose links are all gone is closed after this."""
EXPIRY_CHECK_INTERVAL_S: Final = 60.0
"""How often the wall clock is asked whether a token has expired, at the least: it may be set forward."""
FIRST_DELIVERY_ID: Final = 2**28
"""Of what a session sends. pyamqp takes a disposition of a message that it received for one of a request that it sent
under the same id: it drops a request whose id a dead-lettered message has. Our ids are none that it gets to."""
EPOCH_PROPERTY: Final = "com.microsoft:epoch"
"""A link property: the receiver wants the entity for itself."""
EXCLUSIVE_IF_FREE_PROPERTY: Final = "twinbus:claim-if-free"
"""A link property, True: ... but takes nobody's place, whatever its epoch."""
MAX_ADDRESS_CHARACTERS: Final = 1_024
MAX_BROWSE_LINKS: Final = 500
"""Of one connection."""
MIN_IDLE_TIMEOUT_MS: Final = 1_000
"""A client that wants to hear from us more often is refused: with a thousand of them there is time for nothing else."""

UNAUTHENTICATED_INPUT_BYTES: Final = 33_554_432
"""Input held for all clients of this process together that have shown neither a key nor a token."""
UNAUTHENTICATED_FREE_BYTES: Final = 4_096
"""What each of them may have beyond that: a request with a token has about 1 KB, so nobody is kept from logging in."""

_MECHANISMS_WITHOUT_PASSWORD: Final = tuple(mechanism for mechanism in USUAL_MECHANISMS if mechanism != PLAIN)


def unauthenticated_limits(limits: Limits) -> Limits:
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
        key_registry: KeyRegistry,
        *,
        name: str,
        call_soon: CallSoon,
        link_idle_s: float,
        token_timeout_s: float,
        meter: UsageMeter | None = None,
    ) -> None:
        """`soon` makes a call in the next turn of the loop."""
        self.allow_plaintext_passwords = False
        """Whether clients on other machines may use SASL PLAIN without TLS."""
        self.sasl_refusal_log = ThrottledLog(log)
        self.meter = meter or UsageMeter()
        self.namespace = namespace
        self.administration = administration
        self.key_registry = key_registry
        self.outage_switch = OutageSwitch(namespace.outages)
        self.pairing_reports = PairingReports(ReportStore(namespace.clock, namespace.timers))
        self.call_soon = call_soon
        self.login_log = LoginLog(namespace.clock, namespace.timers, key_registry.has_key_named)
        self.revocations = Revocations(call_soon)
        key_registry.on_key_reduced = self.revocations.revoke
        self.id_sequence = count(1)
        """Of clients and links, by which other processes know them."""
        self.link_idle_s = link_idle_s
        self.token_timeout_s = token_timeout_s
        limits = Limits(enforce_credit=False, max_message_size=namespace.limits.max_message_bytes)
        self._settings = Settings(
            container_id=name,
            properties={"product": "twinbus"},
            first_delivery_id=FIRST_DELIVERY_ID,
            min_idle_timeout_ms=MIN_IDLE_TIMEOUT_MS,
            limits=limits,
            unauthenticated_limits=unauthenticated_limits(limits),
            unauthenticated_input=UnauthenticatedInput(
                max_bytes=UNAUTHENTICATED_INPUT_BYTES, free_bytes=UNAUTHENTICATED_FREE_BYTES
            ),
        )

    def make_connection(self, now: float) -> Connection:
        """For a socket that was accepted. Clients that have nothing but a token use no SASL at all."""
        return Connection.server(self._settings, now=now, require_sasl=False)

    def make_client_connection(self, peer: Peer) -> ClientConnection:
        """For a socket that is there. Without TLS, a client on another machine is not asked for its key."""
        if not self.allows_passwords(peer):
            peer.connection.offer_mechanisms(_MECHANISMS_WITHOUT_PASSWORD)
        return ClientConnection(self, peer)

    def allows_passwords(self, peer: Peer) -> bool:
        """Whether a client may use SASL PLAIN on its connection."""
        return self.allow_plaintext_passwords or is_confidential(peer.transport)


class ClientConnection:
    """One connection."""

    def __init__(self, gateway: Gateway, peer: Peer) -> None:
        """Nobody yet: it has to show a key or a token."""
        self.grants = ConnectionGrants(gateway.key_registry.renew, partial(gateway.revocations.add_user, self))
        self._gateway = gateway
        self._client_id = next(gateway.id_sequence)
        self._namespace = gateway.namespace
        self._peer = peer
        self._transactions = Transactions(gateway.namespace)
        clock = gateway.namespace.clock
        self._request_queue = RequestQueue(peer, gateway.call_soon)
        self._nodes = NamespaceNodes(
            self.grants,
            gateway.key_registry,
            clock,
            self._on_granted,
            self._on_login_failed,
            gateway.outage_switch,
            gateway.pairing_reports,
            request_queue=self._request_queue,
        )
        self._browse_budget = BrowseBudget(gateway.namespace.read_limiter)
        self._browse_link_count = 0
        self._rewrites_decimals = False
        self._link_handlers: dict[Link, LinkHandler] = {}
        self._silence_limits = SilenceLimits(peer.connection)
        self._usage = ConnectionUsage(gateway.meter)
        self._last_used_s = self._namespace.clock.monotonic_s()
        self._expiry_s = float("inf")
        self._timers: dict[str, Timer] = {}
        """By what they are for."""
        self._event_handlers: dict[type, Callable[[Event], None]] = {
            DeliveriesReceived: self._on_deliveries,
            SendsUpdated: self._on_sends_updated,
            CreditGranted: self._on_credit,
            AttachRequested: self._on_attach,
            LinkDetached: self._on_detached,
            SaslInitReceived: self._on_sasl_init,
            SaslFailed: self._on_sasl_failed,
            ConnectionOpened: self._on_opened,
            ConnectionClosed: self._on_closed,
        }

    def on_event(self, event: Event) -> None:
        """What the peer did; what is not in the table concerns nobody."""
        handler = self._event_handlers.get(type(event))
        if handler is not None:
            handler(event)

    def on_writable(self) -> None:
        """The socket takes data again."""
        for use in list(self._link_handlers.values()):
            if isinstance(use, OutgoingLink | BrowseLink):
                use.request_messages()
        self._request_queue.resume()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_deliveries(self, event: Event) -> None:
        assert isinstance(event, DeliveriesReceived)
        use = event.link.context
        assert isinstance(use, IncomingLink | RequestLink | CoordinatorLink)
        use.on_deliveries(event.deliveries)

    def _on_sends_updated(self, event: Event) -> None:
        assert isinstance(event, SendsUpdated)
        if isinstance(event.link.context, OutgoingLink):
            event.link.context.on_disposition(event.deliveries, event.state, settled=event.settled)

    def _on_credit(self, event: Event) -> None:
        assert isinstance(event, CreditGranted)
        if isinstance(event.link.context, OutgoingLink | BrowseLink):
            event.link.context.on_credit()
        elif isinstance(event.link.context, ReplyLink):
            self._request_queue.resume()  # the session's window is open again: there may be room for answers

    # --- who it is ----------------------------------------------------------------------------------------------------

    def _on_sasl_init(self, event: Event) -> None:
        assert isinstance(event, SaslInitReceived)
        connection = self._peer.connection
        if event.mechanism != PLAIN:
            connection.send_sasl_outcome()
            return
        try:
            name, secret = read_plain(event.initial_response or b"")
        except DecodeError:
            name, secret = "", ""
        grants = self._gateway.key_registry.check_password(name, secret)
        if not grants:
            failure = LoginFailed("the name or the secret of the key is wrong", "wrong key name or secret", (name,))
            self._gateway.login_log.record_failure("sasl", self._client_address(), failure)
            connection.send_sasl_outcome(SaslCode.AUTH)
            return
        self.grants.add_all(grants)
        connection.apply_authenticated_limits()
        self._peer.authenticated()
        connection.send_sasl_outcome()

    def _on_sasl_failed(self, event: Event) -> None:
        """The client chose a mechanism that it was not offered."""
        assert isinstance(event, SaslFailed)
        if not self._gateway.allows_passwords(self._peer):
            self._gateway.sasl_refusal_log.warning(
                "SASL of %s was refused: the client chose a mechanism that it was not offered. PLAIN is not offered to "
                "other machines without TLS, because it shows the key to the network: use TLS, or start the server "
                "with --plaintext amqp",
                self._client_address(),
            )

    def _on_login_failed(self, failure: LoginFailed) -> None:
        self._gateway.login_log.record_failure("cbs", self._client_address(), failure)

    def _on_opened(self, event: Event) -> None:
        assert isinstance(event, ConnectionOpened)
        self._usage.on_open(event.open.properties)
        self._rewrites_decimals = is_python_sdk(event.open.properties)
        log.debug("connection opened", extra={"client": self._client_address()})
        self._start_timer("token", self._gateway.token_timeout_s, self._require_token)
        self._close_idle_links()

    def _start_timer(self, purpose: str, delay_s: float, callback: Callable[[], None]) -> None:
        """Make a call later, unless the connection ends before; it replaces one of the same purpose."""
        if purpose in self._timers:
            self._timers[purpose].cancel()
        when_s = self._namespace.clock.monotonic_s() + delay_s
        self._timers[purpose] = self._namespace.timers.call_at(when_s, callback)

    def _require_token(self) -> None:
        if self.grants.is_empty:
            seconds = self._gateway.token_timeout_s
            description = f"no valid token was put within {seconds:g} s of the connection's opening"
            self._peer.close(Error(condition=UNAUTHORIZED_ACCESS, description=description))

    def _on_granted(self) -> None:
        """A token was taken: when the first one ends, the links that lived on it do."""
        self._peer.connection.apply_authenticated_limits()
        self._peer.authenticated()
        expiry_s = self.grants.next_expiry_s
        if expiry_s < self._expiry_s:
            self._expiry_s = expiry_s
            self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        wait_s = self._expiry_s - self._namespace.clock.wall_ms() / 1000
        self._start_timer("expiry", min(max(0.0, wait_s), EXPIRY_CHECK_INTERVAL_S), self._drop_expired)

    def _drop_expired(self) -> None:
        wall_s = self._namespace.clock.wall_ms() / 1000
        if wall_s < self._expiry_s:
            self._schedule_expiry()
            return
        self.grants.drop_expired(wall_s)
        for link, use in list(self._link_handlers.items()):
            denied = self._denied_path(use)
            if denied is not None:
                text = f"no token for '{denied}' is valid any more: put a new one, and attach again"
                error = Error(condition=UNAUTHORIZED_ACCESS, description=text)
                if isinstance(use, SessionLink) and use.session_lock is None:
                    link.refuse(error)  # it still waits for its session
                else:
                    link.detach(error=error)
        self._expiry_s = float("inf")
        self._on_granted()

    def check_access(self) -> None:
        """A key that this connection uses has changed: end the links that it does not allow any more."""
        self.grants.drop_revoked()
        for link, use in list(self._link_handlers.items()):
            denied = self._unauthorized_path(use)
            if denied is None:
                continue
            error = Unauthorized(f"no valid key or token allows the link to '{denied}' any more: its key was changed")
            if isinstance(use, IncomingLink | OutgoingLink | BrowseLink | RequestLink):
                use.force_detach(error)
            else:
                link.detach(error=to_amqp_error(error))
            if isinstance(use, CoordinatorLink):
                use.on_detached()  # rolls back: the client may never answer the detach
        if self.grants.is_empty:
            self._start_timer("token", self._gateway.token_timeout_s, self._require_token)

    def _unauthorized_path(self, link_handler: LinkHandler) -> str | None:
        """What a link is for, if no grant allows it; other than `_denied` for links of every kind."""
        if isinstance(link_handler, IncomingLink | OutgoingLink | BrowseLink):
            return self._denied_path(link_handler)
        if link_handler.path == path.CBS or isinstance(link_handler, UnansweredLink):
            return None
        if isinstance(link_handler, CoordinatorLink) or self._nodes.has(link_handler.path):
            return link_handler.path if self.grants.is_empty else None
        return (
            None
            if any(self.grants.allows(right, f"{link_handler.path}/$management") for right in Right)
            else link_handler.path
        )

    def _denied_path(self, link_handler: LinkHandler) -> str | None:
        """What a link is for, and its client may not use any more."""
        if not isinstance(link_handler, IncomingLink | OutgoingLink | BrowseLink):
            return None
        paths = [link_handler.path]
        if isinstance(link_handler, IncomingLink) and link_handler.transfer_destination is not None:
            paths.append(link_handler.transfer_destination)
        return next((one for one in paths if not self.grants.allows(link_handler.right, one)), None)

    # --- links --------------------------------------------------------------------------------------------------------

    def _on_attach(self, event: Event) -> None:
        assert isinstance(event, AttachRequested)
        link = event.link
        self._last_used_s = self._namespace.clock.monotonic_s()
        if link.is_over:  # its detach came in the same read
            return
        try:
            use = self._bind_link(link, event.attach)
        except SilentOutage as silence:
            use, refusal = UnansweredLink(link, self._namespace.clock), to_amqp_error(silence)
            silence.outage.defer_reply(use, lambda: link.refuse(refusal))
        except ServiceBusError as error:
            link.refuse(to_amqp_error(error))
            return
        link.context = use
        self._link_handlers[link] = use

    def _bind_link(self, link: Link, attach: Attach) -> LinkHandler:
        if isinstance(attach.target, Coordinator) and isinstance(link, Receiver):
            if self.grants.is_empty:
                raise Unauthorized("Unauthorized access. Transactions are for who has shown a key or a token.")
            return CoordinatorLink(link, self._transactions, self._namespace)
        terminus, kind = (attach.target, Target) if isinstance(link, Receiver) else (attach.source, Source)
        written = getattr(terminus, "address", None) if isinstance(terminus, kind) else None
        if not isinstance(written, str) or not written or len(written) > MAX_ADDRESS_CHARACTERS:
            raise InvalidArgument("a link needs an address: the path of an entity, its $management, or $cbs")
        if self._nodes.has(name := path.relative_path(written).lower()):
            return self._nodes.bind_link(link, name)
        address = path.parse_address(written)
        if address.is_management:
            return self._bind_management(link, address)
        return self._bind_entity(link, address, attach)

    def _bind_management(self, link: Link, address: path.Address) -> LinkHandler:
        if not any(self.grants.allows(right, str(address)) for right in Right):
            raise Unauthorized(f"Unauthorized access. Some claim on '{address.path}' is required for its $management.")
        entity, clock = self._namespace.find(address.entity), self._namespace.clock
        where = f"{entity.path}{address.sub_queue.value}"
        if isinstance(link, Sender):
            return ReplyLink(link, where, clock)
        assert isinstance(link, Receiver)
        subject = RequestContext(
            self._namespace,
            self._gateway.administration,
            entity,
            address.sub_queue,
            self._find_session_link,
            self._owns_consumer,
            client_id=self._client_id,
        )
        node = ManagementNode(where, subject, self.grants, self._usage.counter(self.grants, where))
        terms = RequestLimits(estimate_response_bytes=node.estimate_response_bytes)
        use = RequestLink(
            link, where, node, find_reply_link, clock, self._request_queue, self._transactions, request_limits=terms
        )
        use.rewrites_decimals = self._rewrites_decimals
        entity.links.add(use)
        return use

    def _owns_consumer(self, consumer: Consumer) -> bool:
        """It is a link of this connection."""
        link = getattr(consumer, "link", None)
        return isinstance(link, Link) and self._link_handlers.get(link) is consumer

    def _find_session_link(self, entity: Queue | Subscription, session: bytes) -> SessionLink | None:
        """The link of this connection that has a session."""
        links = [
            use for use in self._link_handlers.values() if isinstance(use, SessionLink) and use.path == entity.path
        ]
        return next(
            (link for link in links if link.session_lock is not None and link.session_lock.session_id == session), None
        )

    def _bind_entity(self, link: Link, address: path.Address, attach: Attach) -> LinkHandler:
        if isinstance(link, Receiver):
            self.grants.check(Right.SEND, address.path)
            target = self._namespace.find_sendable(address.entity)
            if address.sub_queue is not SubQueue.MAIN:
                raise NotAllowed(f"nothing can be sent to '{address.path}': a dead-letter queue is filled by its queue")
            target.check_send_enabled()
            target.record_access(self._namespace.clock)
            destination = self._transfer_destination(attach, target)
            kind = PartitionedIncomingLink if target.is_partitioned and destination is None else IncomingLink
            counter = self._usage.counter(self.grants, target.path)
            return kind(link, self._namespace, target, self._transactions, destination, counter)
        assert isinstance(link, Sender)
        self.grants.check(Right.LISTEN, address.path)
        source = self._namespace.find_receivable(address.entity)
        source.check_receive_enabled()
        source.record_access(self._namespace.clock)
        return self._bind_receiver(link, source, address.sub_queue, attach)

    def _transfer_destination(self, attach: Attach, via: Queue | Topic) -> str | None:
        """Where messages go on to, if their sender says so."""
        written = (attach.properties or {}).get(TRANSFER_DESTINATION)
        if written is None:
            return None
        if not isinstance(written, str) or len(written) > MAX_ADDRESS_CHARACTERS:
            raise InvalidArgument(f"{TRANSFER_DESTINATION} is {written!r:.60}; it is the path of an entity")
        destination = path.relative_path(written)
        self.grants.check(Right.SEND, destination)
        found = self._namespace.find_sendable(destination)
        if not isinstance(via, Queue):
            raise NotAllowed(f"messages cannot be sent via '{via.path}': it is no queue")
        return found.path

    def _bind_receiver(
        self, link: Sender, source: Queue | Subscription, sub_queue: SubQueue, attach: Attach
    ) -> LinkHandler:
        source.check_not_forwarded(sub_queue)
        fragments, where = source.fragments_of(sub_queue), f"{source.path}{sub_queue.value}"
        clock, soon, counter = self._namespace.clock, self._gateway.call_soon, self._usage.counter(self.grants, where)
        if getattr(attach.source, "distribution_mode", None) == "copy":
            return self._bind_browser(link, where, fragments, source.entity_id, counter)
        has_sessions = fragments[0].has_sessions
        asks_session = SESSION_FILTER in (getattr(attach.source, "filter", None) or {})
        if asks_session and not has_sessions:
            raise NotAllowed(f"'{where}' has no sessions: receive from it without one")
        if not asks_session and has_sessions:
            raise NotAllowed(f"'{where}' requires sessions: accept one, by its id or the next that is free")
        claim = source.exclusive_receiver_of(sub_queue)
        properties = attach.properties or {}
        epoch, if_free, limit_ms = (
            properties.get(EPOCH_PROPERTY),
            properties.get(EXCLUSIVE_IF_FREE_PROPERTY) is True,
            read_silence_limit(properties),
        )
        if epoch is None:
            claim.check_free(where)
        elif not isinstance(epoch, int) or isinstance(epoch, bool):
            raise InvalidArgument(f"{EPOCH_PROPERTY} is {epoch!r:.60}; it is a whole number")
        else:
            others = any(fragment.dispatcher.consumers for fragment in fragments)
            claim.check_epoch(where, epoch, has_other_receivers=others, only_if_free=if_free)
            claim.displace(where, epoch, fragments)
        use: OutgoingLink
        card = ReceiverIdentity(
            next(self._gateway.id_sequence),
            self._client_id,
            None if epoch is None else int(epoch),
            only_if_free=if_free,
        )
        if epoch is not None and limit_ms is not None:
            link.on_accept = partial(self._silence_limits.agree, link, limit_ms)
        if has_sessions:
            use = SessionLink(link, self._peer, where, fragments, self._namespace, soon, card, counter=counter)
        else:
            use = OutgoingLink(link, self._peer, where, fragments, clock, soon, card, counter=counter)
        if isinstance(epoch, int):
            claim.assign(use, epoch, fragments)
        use.exclusive_receiver, use.source, use.transactions = claim, source, self._transactions
        use.rewrites_decimals = self._rewrites_decimals
        return use

    def _bind_browser(
        self, link: Sender, entity_path: str, fragments: Sequence[FragmentPort], entity_id: int, counter: UsageCounter
    ) -> BrowseLink:
        if self._browse_link_count >= MAX_BROWSE_LINKS:
            text = f"the connection has {MAX_BROWSE_LINKS} browse links, its limit: detach some, or open another"
            raise QuotaExceeded(text)
        use = BrowseLink(
            link,
            self._peer,
            entity_path,
            fragments,
            entity_id,
            self._gateway.call_soon,
            counter=counter,
            budget=self._browse_budget,
        )
        self._browse_link_count += 1
        return use

    def _on_detached(self, event: Event) -> None:
        assert isinstance(event, LinkDetached)
        use = self._link_handlers.pop(event.link, None)
        self._silence_limits.remove(event.link)
        self._namespace.outages.discard_replies(use)
        self._last_used_s = self._namespace.clock.monotonic_s()
        if isinstance(use, OutgoingLink):
            use.on_detached(event.lost)
            self._wait_for_owners(use.owners())
        elif isinstance(use, BrowseLink):
            self._browse_link_count -= 1
            use.on_detached()
        elif isinstance(use, IncomingLink | CoordinatorLink):
            use.on_detached()
        elif isinstance(use, RequestLink):
            self._remove_producer(use)

    def _wait_for_owners(self, owners: set[OwnerPort]) -> None:
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
                owner.mark_suspect()
            release()

        self._namespace.timers.call_at(self._namespace.clock.monotonic_s() + OWNER_TIMEOUT_S, give_up)
        for owner in owners:
            owner.barrier(partial(heard, owner))

    def _remove_producer(self, link_handler: RequestLink) -> None:
        entity = self._namespace.entities.get(path.canonical_key(path.parse_address(link_handler.path).entity))
        if entity is not None:
            entity.links.discard(link_handler)

    # --- what nobody uses ---------------------------------------------------------------------------------------------

    def _close_idle_links(self) -> None:
        now_s, limit_s = self._namespace.clock.monotonic_s(), self._gateway.link_idle_s
        for link, use in list(self._link_handlers.items()):
            if not use.is_busy and now_s - use.last_used_s > limit_s:
                text = f"the link to '{use.path}' was idle for {limit_s:g} s"
                link.detach(error=Error(condition=DETACH_FORCED, description=text))
        if not self._link_handlers and now_s - self._last_used_s > min(NO_LINKS_TIMEOUT_S, limit_s):
            text = "the connection had no links for too long"
            self._peer.close(Error(condition=CONNECTION_FORCED, description=text))
            return
        self._start_timer("idle", min(IDLE_CHECK_INTERVAL_S, limit_s / 2), self._close_idle_links)

    def _on_closed(self, event: Event) -> None:
        assert isinstance(event, ConnectionClosed)
        for timer in self._timers.values():
            timer.cancel()
        self._usage.on_close()
        self._gateway.revocations.remove_user(self)
        if event.error is not None:
            extra = {
                "client": self._client_address(),
                "condition": event.error.condition,
                "reason": event.error.description,
            }
            level = logging.DEBUG if self.grants.is_empty else logging.INFO  # strangers cannot flood the log
            log.log(level, "connection ended", extra=extra)

    def _client_address(self) -> str:
        host = self._peer.transport.get_extra_info("peername")
        return f"{host[0]}:{host[1]}" if isinstance(host, tuple) else "unknown"
