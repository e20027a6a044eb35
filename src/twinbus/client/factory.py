"""The messaging factory: the client's connection to one namespace, and the senders and receivers that share it.

    async with MessagingFactory.from_connection_string(text) as factory:
        orders = factory.create_queue_client("orders")
        await orders.send(BrokeredMessage("two pounds of apples"))

Owns the connection (opened on first use, reopened after it is lost), the factory's state, and the list of open senders
and receivers, which are closed with the factory. Sending and receiving are in `sender` and `receiver`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from twinbus.client import retry
from twinbus.client.amqp.connection import AmqpConnection
from twinbus.client.amqp.request_response import RequestResponseLinks
from twinbus.client.browser import MessageBrowser
from twinbus.client.clients import QueueClient, SubscriptionClient, TopicClient
from twinbus.client.connection_string import ConnectionString
from twinbus.client.errors import ConnectionFailed, FactoryFaulted, ObjectClosed
from twinbus.client.events import EventPublisher
from twinbus.client.inspector.message_inspector import MessageInspector
from twinbus.client.pairing.pairing import Pairing, check_pair
from twinbus.client.receiver import MessageReceiver, ReceiveMode
from twinbus.client.retry import SharedAttempt
from twinbus.client.sender import MessageSender
from twinbus.client.settings import FactorySettings, FactoryState, settings_from_options, tls_context
from twinbus.client.tokens import CbsAuthorizer, token_provider_for
from twinbus.client.transaction import Transaction
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from twinbus.client.amqp.request_response import Response
    from twinbus.client.client_entity import ClientEntity
    from twinbus.client.pairing.options import SendAvailabilityPairedNamespaceOptions
    from twinbus.client.retry import OperationOutcome, RetryPolicy
    from twinbus.client.settings import ClientOptions
    from twinbus.client.tokens import TokenProvider


log: Final = logging.getLogger(__name__)

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 30.0
MIN_SILENCE_S: Final = 0.5
"""Lowest limit for `drop_if_silent`, because a shorter silence does not indicate a dead connection."""


class MessagingFactory:
    """Connection to one namespace; creates senders, receivers, clients and transactions."""

    def __init__(
        self,
        where: ConnectionString,
        settings: FactorySettings | None = None,
        *,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """Create a factory; the first operation connects. Applications usually call `from_connection_string`."""
        self.where = where
        self.settings = settings if settings is not None else FactorySettings()
        self.state = FactoryState.OPEN
        self.fault: BaseException | None = None
        """Error that caused the factory to fault."""
        self.ended: asyncio.Event = asyncio.Event()
        """Set when the factory is closed or has faulted."""
        self.pairing: Pairing | None = None
        """The pair whose primary this factory is; None if the factory is not paired."""
        self.events = EventPublisher()
        """Publisher of message events: sends, failed sends, settlements."""
        self._token_provider = token_provider or token_provider_for(where, self.settings.clock)
        self._tls_context = None if where.is_emulator else self.settings.tls or tls_context(None)
        self._connection: AmqpConnection | None = None
        self._authorizer: CbsAuthorizer | None = None
        self._connect_attempt = SharedAttempt(f"connecting to {self.address}", self._open_connection, CONNECT_TIMEOUT_S)
        self._management_links: dict[str, RequestResponseLinks] = {}
        self._entities: set[ClientEntity] = set()
        self._watchers: list[Callable[[MessagingFactory], None]] = []

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a factory for the namespace of a connection string. Raise ValueError if the string is invalid.

        With `UseDevelopmentEmulator=true` the factory connects without TLS. Otherwise the factory verifies the
        certificate with `tls`, with the certificate authorities in `ca_file`, or with those of this machine.
        """
        provider = options.get("token_provider")
        return cls(ConnectionString.parse(text), settings_from_options(options), token_provider=provider)

    def __repr__(self) -> str:
        return f"<MessagingFactory {self.address} {self.state.value}>"

    async def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
        """Pair this namespace, the primary, with a secondary, so that sends succeed while the primary is down.

        The pairing covers only senders created after this call. Raise PairingRefused or InvalidArgument if the two
        namespaces cannot be paired. Raise PairingFailed if the secondary could not be prepared within the operation
        timeout; in that case the factory stays unpaired, and the call may be repeated. With `require_secondary=False`
        the call returns at once, and the secondary is prepared in the background.
        """
        self.check_open()
        check_pair(self, options)
        uncovered = sorted({entity.path for entity in self._entities if isinstance(entity, MessageSender)})
        pairing = self.pairing = Pairing(self, options)
        try:
            await pairing.start()
        except BaseException:
            self.pairing = None
            await pairing.stop()
            await pairing.observers.close()
            raise
        if uncovered:
            log.warning("the pairing does not cover senders created before it: %s", ", ".join(uncovered))
        return pairing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- clients, senders and receivers -------------------------------------------------------------------------------

    def create_queue_client(self, path: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK) -> QueueClient:
        """Create a client that sends to a queue and receives from it."""
        return QueueClient(self, path, mode)

    def create_topic_client(self, path: str) -> TopicClient:
        """Create a client that sends to a topic."""
        return TopicClient(self, path)

    def create_subscription_client(
        self, topic: str, name: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> SubscriptionClient:
        """Create a client that receives from a subscription."""
        return SubscriptionClient(self, topic, name, mode)

    def create_message_sender(self, path: str, *, via: str | None = None) -> MessageSender:
        """Create a sender for a queue or a topic. A paired factory's sender parks messages the primary cannot accept.

        With `via`, messages go to that entity first and from there to `path`, so that a transaction can cover both.
        """
        return MessageSender(self, path, via=via) if self.pairing is None else self.pairing.make_sender(path, via)

    def create_message_receiver(
        self,
        path: str,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch: int = 0,
        epoch: int | None = None,
        auto_renew: dt.timedelta | float | None = None,
        silence_limit: dt.timedelta | float | None = None,
        if_free: bool = False,
    ) -> MessageReceiver:
        """Create a receiver for a queue, a subscription (`topic/Subscriptions/name`), or a sub-queue of either.

        With `epoch` the receiver is exclusive; `docs/browse.md` describes takeover, `silence_limit` and `if_free`.
        Locks of received messages are renewed until the messages are settled, but no longer than `auto_renew`.
        """
        return MessageReceiver(
            self,
            path,
            mode,
            prefetch=prefetch,
            epoch=epoch,
            auto_renew=auto_renew,
            silence_limit=silence_limit,
            if_free=if_free,
        )

    def create_message_browser(
        self,
        path: str,
        *,
        from_sequence_number: int = 0,
        to_sequence_number: int | None = None,
        fragment: int | None = None,
    ) -> MessageBrowser:
        """Create a browser, which reads an entity as a log and neither locks nor deletes messages. twinbus only."""
        return MessageBrowser(
            self,
            path,
            from_sequence_number=from_sequence_number,
            to_sequence_number=to_sequence_number,
            fragment=fragment,
        )

    def create_message_inspector(self, path: str) -> MessageInspector:
        """Create an inspector, which finds, resubmits, moves and deletes messages without receiving them."""
        return MessageInspector(self, path)

    def transaction(self) -> Transaction:
        """Create a transaction, whose sends and settlements are committed together or rolled back together."""
        self.check_open()
        return Transaction(self)

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Host and port of the namespace."""
        return self.where.address

    @property
    def is_connected(self) -> bool:
        """Whether the factory has an open connection."""
        return self._connection is not None and self._connection.is_open

    def watch(self, watcher: Callable[[MessagingFactory], None]) -> None:
        """Call `watcher` whenever `state` or `is_connected` has changed."""
        self._watchers.append(watcher)

    def check_open(self) -> None:
        """Raise ObjectClosed or FactoryFaulted if the factory is closed or has faulted."""
        if self.state is FactoryState.FAULTED:
            raise FactoryFaulted(f"the factory for {self.address} has faulted: {self.fault}") from self.fault
        if self.state is FactoryState.CLOSED:
            raise ObjectClosed(f"the factory for {self.address} is closed")

    async def close(self) -> None:
        """Close all senders, receivers and clients of this factory, then the connection. Idempotent."""
        if self.state is not FactoryState.OPEN:
            return
        self._set_state(FactoryState.CLOSED)
        await asyncio.gather(*[entity.close() for entity in list(self._entities)], return_exceptions=True)
        await self._disconnect()

    def abort(self, fault: BaseException) -> None:
        """Put the factory into the faulted state and drop its connection. Later operations raise FactoryFaulted."""
        if self.state is not FactoryState.OPEN:
            return
        self.fault = fault
        log.error("the factory for %s has faulted: %s", self.address, fault)
        self._set_state(FactoryState.FAULTED)
        self._connect_attempt.cancel()
        if self._authorizer is not None:
            self._authorizer.close()
        if self._connection is not None:
            self._connection.abort()

    def _set_state(self, state: FactoryState) -> None:
        self.state = state
        self.ended.set()
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(self)
            except Exception:
                log.exception("a watcher of %r raised an exception; the other watchers are still called", self)

    # --- the connection, for senders, receivers and clients -----------------------------------------------------------

    def register(self, entity: ClientEntity) -> None:
        """Add a sender, receiver or client that is closed with the factory."""
        self._entities.add(entity)

    def unregister(self, entity: ClientEntity) -> None:
        """Remove a sender, receiver or client that was closed."""
        self._entities.discard(entity)

    async def authorized_connection(self, path: str) -> AmqpConnection:
        """Return an open connection that is authorized for the entity `path`. Connect if necessary."""
        self.check_open()
        connection = self._connection
        if connection is None or not connection.is_open:
            try:
                connection = await self._connect_attempt.result()
            except ConnectionFailed:
                self.check_open()  # the factory may have been closed in the meantime
                raise
        assert self._authorizer is not None
        await self._authorizer.authorize(path)
        return connection

    async def _open_connection(self) -> AmqpConnection:
        settings, where = self.settings, self.where
        connection = await AmqpConnection.connect(
            host=where.host,
            port=where.amqp_port,
            tls=self._tls_context,
            client_id=settings.client_id,
            idle_timeout_s=settings.idle_timeout_s,
            timeout_s=min(CONNECT_TIMEOUT_S, settings.operation_timeout_s),
        )
        if self._authorizer is not None:
            self._authorizer.close()
        self._connection, self._management_links = connection, {}
        self._authorizer = CbsAuthorizer(connection, self._token_provider, where.host, settings.clock)
        connection.lost.add_done_callback(lambda _: self._notify_watchers())
        self._notify_watchers()
        return connection

    def drop_if_silent(self, limit_s: float) -> None:
        """Drop the connection if no frame arrived for `limit_s`; its pending operations fail at once.

        A silent peer is probably gone or suspended. After the peer returns, the old connection may need minutes to
        recover (TCP retransmission delays), while a new connection works immediately. A connection attempt that has
        lasted for `limit_s` is cancelled for the same reason.
        """
        connection = self._connection
        if limit_s < MIN_SILENCE_S:
            return
        if connection is not None and connection.is_open and connection.silence_s >= limit_s:
            log.warning("dropping the connection to %s: no data received for %.1f s", self.address, limit_s)
            connection.abort()
        elif self._connect_attempt.elapsed_s >= limit_s:
            self._connect_attempt.cancel()

    async def _disconnect(self) -> None:
        self._connect_attempt.cancel()
        if self._authorizer is not None:
            self._authorizer.close()
        if self._connection is not None:
            await self._connection.close()

    async def request(
        self,
        path: str,
        operation: str,
        body: Mapping[str, object],
        *,
        timeout_s: float,
        link_name: str | None = None,
        outcome: OperationOutcome | None = None,
    ) -> Response:
        """Send a request to an entity's `$management` and return the response. Raise an error unless the status is 2xx.

        `outcome` records whether the operation may have been carried out although the request failed.
        """
        connection = await self.authorized_connection(path)
        links = self._management_links.get(path)
        if links is None or links.failure is not None:
            if links is not None:
                links.detach()
            links = self._management_links[path] = RequestResponseLinks(connection, f"{path}/$management")
        await links.open()
        properties: dict[str, object] = {"operation": operation, "type": "entity-mgmt"}
        if link_name is not None:
            properties["associated-link-name"] = link_name
        try:
            response = await links.request(properties, dict(body), timeout_s=timeout_s, outcome=outcome)
            if not response.is_success:
                raise response.error
        except ServiceBusError as error:
            if outcome is not None:
                outcome.note_failure(error)
            raise
        return response

    async def run_with_retries(
        self,
        description: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None,
        policy: RetryPolicy | None = None,
        outcome: OperationOutcome | None = None,
    ) -> T:
        """Run `attempt`, with retries according to the policy, until it succeeds or the timeout expires."""
        return await retry.run_with_retries(
            description,
            attempt,
            limit_s=self.settings.operation_timeout_s if timeout_s is None else timeout_s,
            policy=policy if policy is not None else self.settings.retry_policy,
            check_open=self.check_open,
            outcome=outcome,
        )
