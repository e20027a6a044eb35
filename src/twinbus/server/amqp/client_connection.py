"""The connection of one client.

Owns: authentication of a client (SASL, tokens), the entity or node of each link, and the closing of idle links and
connections. Messages are handled by `incoming_link` and `outgoing_link`, requests by `request_link`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.performatives import Error
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
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import PLAIN, SaslCode, read_plain
from twinbus.amqp.sender import Sender
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
from twinbus.server.amqp.open_connections import OpenConnection
from twinbus.server.amqp.outgoing_link import OutgoingLink
from twinbus.server.amqp.request_link import ReplyLink, RequestLimits, RequestLink, RequestQueue, find_reply_link
from twinbus.server.amqp.sdk_decimals import is_python_sdk
from twinbus.server.amqp.session_link import SESSION_FILTER, SessionLink
from twinbus.server.amqp.silence_limits import SilenceLimits, read_silence_limit
from twinbus.server.amqp.transactions import CoordinatorLink, Transactions
from twinbus.server.auth.grants import ConnectionGrants
from twinbus.server.auth.keys import Right
from twinbus.server.auth.sas import LoginFailed
from twinbus.server.usage.meter import ConnectionUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.performatives import Attach
    from twinbus.amqp.events import Event
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Subscription, Topic
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort
    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.usage.counter import UsageCounter

    LinkHandler = IncomingLink | OutgoingLink | BrowseLink | RequestLink | ReplyLink | CoordinatorLink | UnansweredLink

log: Final = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_S: Final = 30.0
"""How often a connection checks for idle links."""
NO_LINKS_TIMEOUT_S: Final = 300.0
"""A connection without links is closed after this time."""
EXPIRY_CHECK_INTERVAL_S: Final = 60.0
"""The longest time between two checks of token expiry, because the wall clock may be set forward."""
EPOCH_PROPERTY: Final = "com.microsoft:epoch"
"""A link property: the epoch of an exclusive receiver."""
EXCLUSIVE_IF_FREE_PROPERTY: Final = "twinbus:claim-if-free"
"""A link property: if it is True, the exclusive receiver displaces no other receiver, even with a higher epoch."""
MAX_ADDRESS_CHARACTERS: Final = 1_024
MAX_BROWSE_LINKS: Final = 500
"""The maximum number of browse links per connection."""


class ClientConnection:
    """The connection of one client."""

    def __init__(self, gateway: Gateway, peer: Peer) -> None:
        """Create a connection without rights, which the client gets by presenting a key or a token."""
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
        self._open_connection: OpenConnection | None = None
        self._last_used_s = self._namespace.clock.monotonic_s()
        self._expiry_s = float("inf")
        self._timers: dict[str, Timer] = {}
        """Timers by purpose."""
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
        """Handle an event from the AMQP engine; events without a handler are ignored."""
        handler = self._event_handlers.get(type(event))
        if handler is not None:
            handler(event)

    def on_writable(self) -> None:
        """Resume sending, because the socket accepts data again."""
        for handler in list(self._link_handlers.values()):
            if isinstance(handler, OutgoingLink | BrowseLink):
                handler.request_messages()
        self._request_queue.resume()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_deliveries(self, event: Event) -> None:
        assert isinstance(event, DeliveriesReceived)
        handler = event.link.context
        assert isinstance(handler, IncomingLink | RequestLink | CoordinatorLink)
        handler.on_deliveries(event.deliveries)

    def _on_sends_updated(self, event: Event) -> None:
        assert isinstance(event, SendsUpdated)
        if isinstance(event.link.context, OutgoingLink):
            event.link.context.on_disposition(event.deliveries, event.state, settled=event.settled)

    def _on_credit(self, event: Event) -> None:
        assert isinstance(event, CreditGranted)
        if isinstance(event.link.context, OutgoingLink | BrowseLink):
            event.link.context.on_credit()
        elif isinstance(event.link.context, ReplyLink):
            self._request_queue.resume()  # the session window is open again, so there may be room for responses

    # --- authentication -----------------------------------------------------------------------------------------------

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
        """Log the refused mechanism if PLAIN is not offered on this connection."""
        assert isinstance(event, SaslFailed)
        if not self._gateway.allows_passwords(self._peer):
            self._gateway.sasl_refusal_log.warning(
                "SASL of %s was refused: the client chose a mechanism that it was not offered. PLAIN is not offered to "
                "other machines without TLS, because it reveals the key to the network: use TLS, or start the server "
                "with --plaintext amqp",
                self._client_address(),
            )

    def _on_login_failed(self, failure: LoginFailed) -> None:
        self._gateway.login_log.record_failure("cbs", self._client_address(), failure)

    def _on_opened(self, event: Event) -> None:
        assert isinstance(event, ConnectionOpened)
        self._usage.on_open(event.open.properties)
        now_ms = self._namespace.clock.wall_ms()
        self._open_connection = OpenConnection(
            self._client_id, self._peer, self.grants, self._link_handlers, event.open, now_ms
        )
        self._gateway.open_connections.add(self._open_connection)
        self._rewrites_decimals = is_python_sdk(event.open.properties)
        log.debug("connection opened", extra={"client": self._client_address()})
        self._start_timer("token", self._gateway.token_timeout_s, self._require_token)
        self._close_idle_links()

    def _start_timer(self, purpose: str, delay_s: float, callback: Callable[[], None]) -> None:
        """Schedule a call that replaces any timer with the same purpose and is cancelled when the connection closes."""
        if purpose in self._timers:
            self._timers[purpose].cancel()
        when_s = self._namespace.clock.monotonic_s() + delay_s
        self._timers[purpose] = self._namespace.timers.call_at(when_s, callback)

    def _require_token(self) -> None:
        if self.grants.is_empty:
            seconds = self._gateway.token_timeout_s
            description = f"no valid token was put within {seconds:g} s after the connection was opened"
            self._peer.close(Error(condition=UNAUTHORIZED_ACCESS, description=description))

    def _on_granted(self) -> None:
        """Apply the limits for an authenticated client, and schedule a check for when the first token expires."""
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
        for link, handler in list(self._link_handlers.items()):
            denied_path = self._denied_path(handler)
            if denied_path is not None:
                text = f"the token for '{denied_path}' has expired: put a new one, and attach again"
                error = Error(condition=UNAUTHORIZED_ACCESS, description=text)
                if isinstance(handler, SessionLink) and handler.session_lock is None:
                    link.refuse(error)  # the attach is still waiting for a session
                else:
                    link.detach(error=error)
        self._expiry_s = float("inf")
        self._on_granted()

    def check_access(self) -> None:
        """Detach the links that are no longer allowed, because a key of this connection has changed."""
        self.grants.drop_revoked()
        for link, handler in list(self._link_handlers.items()):
            denied_path = self._unauthorized_path(handler)
            if denied_path is None:
                continue
            error = Unauthorized(f"no valid key or token allows the link to '{denied_path}': its key was changed")
            if isinstance(handler, IncomingLink | OutgoingLink | BrowseLink | RequestLink):
                handler.force_detach(error)
            else:
                link.detach(error=to_amqp_error(error))
            if isinstance(handler, CoordinatorLink):
                handler.on_detached()  # roll back now, because the client may never respond to the detach
        if self.grants.is_empty:
            self._start_timer("token", self._gateway.token_timeout_s, self._require_token)

    def _unauthorized_path(self, link_handler: LinkHandler) -> str | None:
        """Return the path of a link (of any kind) if no grant allows the link, otherwise None."""
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
        """Return the path of an entity that a message link no longer has the right to use, otherwise None."""
        if not isinstance(link_handler, IncomingLink | OutgoingLink | BrowseLink):
            return None
        paths = [link_handler.path]
        if isinstance(link_handler, IncomingLink) and link_handler.transfer_destination is not None:
            paths.append(link_handler.transfer_destination)
        return next((name for name in paths if not self.grants.allows(link_handler.right, name)), None)

    # --- links --------------------------------------------------------------------------------------------------------

    def _on_attach(self, event: Event) -> None:
        assert isinstance(event, AttachRequested)
        link = event.link
        self._last_used_s = self._namespace.clock.monotonic_s()
        if link.is_over:  # the client detached the link in the same read
            return
        try:
            handler = self._bind_link(link, event.attach)
        except SilentOutage as outage_error:
            handler, refusal = UnansweredLink(link, self._namespace.clock), to_amqp_error(outage_error)
            outage_error.outage.defer_reply(handler, lambda: link.refuse(refusal))
        except ServiceBusError as error:
            link.refuse(to_amqp_error(error))
            return
        link.context = handler
        self._link_handlers[link] = handler

    def _bind_link(self, link: Link, attach: Attach) -> LinkHandler:
        if isinstance(attach.target, Coordinator) and isinstance(link, Receiver):
            if self.grants.is_empty:
                raise Unauthorized("Unauthorized access. Transactions require a valid key or token.")
            return CoordinatorLink(link, self._transactions, self._namespace)
        terminus, kind = (attach.target, Target) if isinstance(link, Receiver) else (attach.source, Source)
        address_text = getattr(terminus, "address", None) if isinstance(terminus, kind) else None
        if not isinstance(address_text, str) or not address_text or len(address_text) > MAX_ADDRESS_CHARACTERS:
            raise InvalidArgument("a link needs an address: the path of an entity, its $management, or $cbs")
        if self._nodes.has(name := path.relative_path(address_text).lower()):
            return self._nodes.bind_link(link, name)
        address = path.parse_address(address_text)
        if address.is_management:
            return self._bind_management(link, address)
        return self._bind_entity(link, address, attach)

    def _bind_management(self, link: Link, address: path.Address) -> LinkHandler:
        if not any(self.grants.allows(right, str(address)) for right in Right):
            raise Unauthorized(f"Unauthorized access. Some claim on '{address.path}' is required for its $management.")
        entity, clock = self._namespace.find(address.entity), self._namespace.clock
        entity_path = f"{entity.path}{address.sub_queue.value}"
        if isinstance(link, Sender):
            return ReplyLink(link, entity_path, clock)
        assert isinstance(link, Receiver)
        context = RequestContext(
            self._namespace,
            self._gateway.administration,
            entity,
            address.sub_queue,
            self._find_session_link,
            self._owns_consumer,
            client_id=self._client_id,
        )
        node = ManagementNode(entity_path, context, self.grants, self._usage.counter(self.grants, entity_path))
        limits = RequestLimits(estimate_response_bytes=node.estimate_response_bytes)
        handler = RequestLink(
            link,
            entity_path,
            node,
            find_reply_link,
            clock,
            self._request_queue,
            self._transactions,
            request_limits=limits,
        )
        handler.rewrites_decimals = self._rewrites_decimals
        entity.links.add(handler)
        return handler

    def _owns_consumer(self, consumer: Consumer) -> bool:
        """Return whether a consumer is a link of this connection."""
        link = getattr(consumer, "link", None)
        return isinstance(link, Link) and self._link_handlers.get(link) is consumer

    def _find_session_link(self, entity: Queue | Subscription, session: bytes) -> SessionLink | None:
        """Return the link of this connection that holds a session, or None."""
        links = [
            handler
            for handler in self._link_handlers.values()
            if isinstance(handler, SessionLink) and handler.path == entity.path
        ]
        return next(
            (link for link in links if link.session_lock is not None and link.session_lock.session_id == session), None
        )

    def _bind_entity(self, link: Link, address: path.Address, attach: Attach) -> LinkHandler:
        if isinstance(link, Receiver):
            self.grants.check(Right.SEND, address.path)
            target = self._namespace.find_sendable(address.entity)
            if address.sub_queue is not SubQueue.MAIN:
                raise NotAllowed(f"cannot send to '{address.path}': only the broker fills a dead-letter queue")
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
        """Return the entity to which messages from this link are forwarded, or None if the client names none."""
        destination_text = (attach.properties or {}).get(TRANSFER_DESTINATION)
        if destination_text is None:
            return None
        if not isinstance(destination_text, str) or len(destination_text) > MAX_ADDRESS_CHARACTERS:
            raise InvalidArgument(f"{TRANSFER_DESTINATION} is {destination_text!r:.60}; it must be a path of an entity")
        destination = path.relative_path(destination_text)
        self.grants.check(Right.SEND, destination)
        entity = self._namespace.find_sendable(destination)
        if not isinstance(via, Queue):
            raise NotAllowed(f"messages cannot be sent via '{via.path}': it is not a queue")
        return entity.path

    def _bind_receiver(
        self, link: Sender, source: Queue | Subscription, sub_queue: SubQueue, attach: Attach
    ) -> LinkHandler:
        source.check_not_forwarded(sub_queue)
        fragments, entity_path = source.fragments_of(sub_queue), f"{source.path}{sub_queue.value}"
        clock, call_soon, counter = (
            self._namespace.clock,
            self._gateway.call_soon,
            self._usage.counter(self.grants, entity_path),
        )
        if getattr(attach.source, "distribution_mode", None) == "copy":
            return self._bind_browser(link, entity_path, fragments, source.entity_id, counter)
        has_sessions = fragments[0].has_sessions
        wants_session = SESSION_FILTER in (getattr(attach.source, "filter", None) or {})
        if wants_session and not has_sessions:
            raise NotAllowed(f"'{entity_path}' has no sessions: receive from it without one")
        if not wants_session and has_sessions:
            raise NotAllowed(f"'{entity_path}' requires sessions: accept one by its id, or the next available one")
        exclusive_receiver = source.exclusive_receiver_of(sub_queue)
        properties = attach.properties or {}
        epoch, if_free, limit_ms = (
            properties.get(EPOCH_PROPERTY),
            properties.get(EXCLUSIVE_IF_FREE_PROPERTY) is True,
            read_silence_limit(properties),
        )
        if epoch is None:
            exclusive_receiver.check_free(entity_path)
        elif not isinstance(epoch, int) or isinstance(epoch, bool):
            raise InvalidArgument(f"{EPOCH_PROPERTY} is {epoch!r:.60}; it must be an integer")
        else:
            has_receivers = any(fragment.dispatcher.consumers for fragment in fragments)
            exclusive_receiver.check_epoch(entity_path, epoch, has_other_receivers=has_receivers, only_if_free=if_free)
            exclusive_receiver.displace(entity_path, epoch, fragments)
        handler: OutgoingLink
        identity = ReceiverIdentity(
            next(self._gateway.id_sequence),
            self._client_id,
            None if epoch is None else int(epoch),
            only_if_free=if_free,
        )
        if epoch is not None and limit_ms is not None:
            link.on_accept = partial(self._silence_limits.agree, link, limit_ms)
        if has_sessions:
            handler = SessionLink(
                link, self._peer, entity_path, fragments, self._namespace, call_soon, identity, counter=counter
            )
        else:
            handler = OutgoingLink(
                link, self._peer, entity_path, fragments, clock, call_soon, identity, counter=counter
            )
        if isinstance(epoch, int):
            exclusive_receiver.assign(handler, epoch, fragments)
        handler.exclusive_receiver, handler.source, handler.transactions = (
            exclusive_receiver,
            source,
            self._transactions,
        )
        handler.rewrites_decimals = self._rewrites_decimals
        return handler

    def _bind_browser(
        self, link: Sender, entity_path: str, fragments: Sequence[FragmentPort], entity_id: int, counter: UsageCounter
    ) -> BrowseLink:
        if self._browse_link_count >= MAX_BROWSE_LINKS:
            text = f"the connection has {MAX_BROWSE_LINKS} browse links, the limit: detach one first"
            raise QuotaExceeded(text)
        handler = BrowseLink(
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
        return handler

    def _on_detached(self, event: Event) -> None:
        assert isinstance(event, LinkDetached)
        handler = self._link_handlers.pop(event.link, None)
        if self._open_connection is not None:
            self._open_connection.add_detached(handler)
        self._silence_limits.remove(event.link)
        self._namespace.outages.discard_replies(handler)
        self._last_used_s = self._namespace.clock.monotonic_s()
        if isinstance(handler, OutgoingLink):
            handler.on_detached(event.lost)
            self._wait_for_owners(handler.owners())
        elif isinstance(handler, BrowseLink):
            self._browse_link_count -= 1
            handler.on_detached()
        elif isinstance(handler, IncomingLink | CoordinatorLink):
            handler.on_detached()
        elif isinstance(handler, RequestLink):
            self._remove_producer(handler)

    def _wait_for_owners(self, owners: set[OwnerPort]) -> None:
        """Hold all output to the client until the owners of the link's fragments know that the link is detached.

        When the client receives the response to its detach, it may assume that other receivers can get the messages.
        The connection waits only once for an owner that does not respond. Otherwise, a client that constantly opens and
        closes links would receive nothing at all.
        """
        pending = set(owners)
        if not pending:
            return
        release = self._peer.hold_output()

        def on_barrier(owner: OwnerPort, _answer: object) -> None:
            pending.discard(owner)
            if not pending:
                release()

        def give_up() -> None:
            for owner in pending:
                owner.mark_suspect()
            release()

        self._namespace.timers.call_at(self._namespace.clock.monotonic_s() + OWNER_TIMEOUT_S, give_up)
        for owner in owners:
            owner.barrier(partial(on_barrier, owner))

    def _remove_producer(self, link_handler: RequestLink) -> None:
        entity = self._namespace.entities.get(path.canonical_key(path.parse_address(link_handler.path).entity))
        if entity is not None:
            entity.links.discard(link_handler)

    # --- idle links and closing ---------------------------------------------------------------------------------------

    def _close_idle_links(self) -> None:
        now_s, limit_s = self._namespace.clock.monotonic_s(), self._gateway.link_idle_s
        for link, handler in list(self._link_handlers.items()):
            if not handler.is_busy and now_s - handler.last_used_s > limit_s:
                text = f"the link to '{handler.path}' was idle for {limit_s:g} s"
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
        self._gateway.open_connections.remove(self._client_id)
        self._gateway.revocations.remove_user(self)
        if event.error is not None:
            extra = {
                "client": self._client_address(),
                "condition": event.error.condition,
                "reason": event.error.description,
            }
            # Unauthenticated clients must not flood the log.
            level = logging.DEBUG if self.grants.is_empty else logging.INFO
            log.log(level, "connection ended", extra=extra)

    def _client_address(self) -> str:
        host = self._peer.transport.get_extra_info("peername")
        return f"{host[0]}:{host[1]}" if isinstance(host, tuple) else "unknown"
