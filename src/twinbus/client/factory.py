"""The messaging factory: one namespace, one connection, and all that is made on it.

    async with MessagingFactory.from_connection_string(text) as factory:
        orders = factory.create_queue_client("orders")
        await orders.send(BrokeredMessage("two pounds of apples"))

Owns: the connection, which is made when it is first needed and again after it was lost; the factory's state; and who
was made by it, since they end with it. What sends and receives is in `sender` and `receiver`.
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
"""A shorter silence says nothing."""


class MessagingFactory:
    """One namespace, as an application uses it."""

    def __init__(
        self,
        where: ConnectionString,
        settings: FactorySettings | None = None,
        *,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """Nothing is connected before it is needed. `from_connection_string` is the usual way."""
        self.where = where
        self.settings = settings if settings is not None else FactorySettings()
        self.state = FactoryState.OPEN
        self.fault: BaseException | None = None
        """Why it has faulted."""
        self.ended: asyncio.Event = asyncio.Event()
        """Set when it is closed or faulted."""
        self.pairing: Pairing | None = None
        """The pair of which it is the primary."""
        self.events = EventPublisher()
        """What becomes of messages."""
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
        """A factory for the namespace that a connection string names. ValueError says what is wrong with the string.

        With `UseDevelopmentEmulator=true` it speaks without TLS; else the certificate is checked by `tls`, by the
        authorities in `ca_file`, or by this machine's.
        """
        provider = options.get("token_provider")
        return cls(ConnectionString.parse(text), settings_from_options(options), token_provider=provider)

    def __repr__(self) -> str:
        return f"<MessagingFactory {self.address} {self.state.value}>"

    async def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
        """Pair this namespace, the primary, with a secondary: from now on sends survive its loss.

        Only senders made from now on are covered. PairingRefused or InvalidArgument if the two cannot be paired;
        PairingFailed if the secondary could not be prepared within the operation timeout: then nothing has changed, and
        the call may be repeated. With `require_secondary=False` the call returns at once, and the secondary is prepared
        in the background.
        """
        self.check_open()
        check_pair(self, options)
        uncovered = sorted({one.path for one in self._entities if isinstance(one, MessageSender)})
        pairing = self.pairing = Pairing(self, options)
        try:
            await pairing.start()
        except BaseException:
            self.pairing = None
            await pairing.stop()
            await pairing.observers.close()
            raise
        if uncovered:
            log.warning("senders made before the pairing are not covered by it: %s", ", ".join(uncovered))
        return pairing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- what it makes ------------------------------------------------------------------------------------------------

    def create_queue_client(self, path: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK) -> QueueClient:
        """A client that sends to a queue and receives from it."""
        return QueueClient(self, path, mode)

    def create_topic_client(self, path: str) -> TopicClient:
        """A client that sends to a topic."""
        return TopicClient(self, path)

    def create_subscription_client(
        self, topic: str, name: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> SubscriptionClient:
        """A client that receives from a subscription."""
        return SubscriptionClient(self, topic, name, mode)

    def create_message_sender(self, path: str, *, via: str | None = None) -> MessageSender:
        """A sender to a queue or a topic. Of a paired factory it parks what the primary does not take.

        With `via` messages go to that entity first, and from there to `path`: for transactions.
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
        """A receiver of a queue, a subscription (`topic/Subscriptions/name`), or of a sub-queue of one of these.

        With `epoch` it is the only one: `docs/browse.md` says how such a claim is taken over, what `silence_limit` is,
        and what `if_free`. `auto_renew` is how long the locks of received messages are renewed while nothing was said
        of them.
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
        """A reader of an entity as a log, which takes nothing. twinbus only."""
        return MessageBrowser(
            self,
            path,
            from_sequence_number=from_sequence_number,
            to_sequence_number=to_sequence_number,
            fragment=fragment,
        )

    def transaction(self) -> Transaction:
        """Operations that happen together, or not at all."""
        self.check_open()
        return Transaction(self)

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the namespace is."""
        return self.where.address

    @property
    def is_connected(self) -> bool:
        """There is a connection now."""
        return self._connection is not None and self._connection.is_open

    def watch(self, watcher: Callable[[MessagingFactory], None]) -> None:
        """Have `watcher` called whenever `state` or `is_connected` has changed."""
        self._watchers.append(watcher)

    def check_open(self) -> None:
        """ObjectClosed or FactoryFaulted if it cannot be used any more."""
        if self.state is FactoryState.FAULTED:
            raise FactoryFaulted(f"the factory for {self.address} has faulted: {self.fault}") from self.fault
        if self.state is FactoryState.CLOSED:
            raise ObjectClosed(f"the factory for {self.address} is closed")

    async def close(self) -> None:
        """End everything made here, then the connection. May be called again."""
        if self.state is not FactoryState.OPEN:
            return
        self._set_state(FactoryState.CLOSED)
        await asyncio.gather(*[one.close() for one in list(self._entities)], return_exceptions=True)
        await self._disconnect()

    def abort(self, fault: BaseException) -> None:
        """Fault: nothing works here any more, and whoever uses it is told why."""
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
                log.exception("a watcher of %r failed; the others are told all the same", self)

    # --- the connection: for what is made here ------------------------------------------------------------------------

    def register(self, entity: ClientEntity) -> None:
        """Something was made that ends with the factory."""
        self._entities.add(entity)

    def unregister(self, entity: ClientEntity) -> None:
        """It has ended before."""
        self._entities.discard(entity)

    async def authorized_connection(self, path: str) -> AmqpConnection:
        """The connection, with a token shown for an entity."""
        self.check_open()
        conversation = self._connection
        if conversation is None or not conversation.is_open:
            try:
                conversation = await self._connect_attempt.result()
            except ConnectionFailed:
                self.check_open()  # it may have been closed meanwhile
                raise
        assert self._authorizer is not None
        await self._authorizer.authorize(path)
        return conversation

    async def _open_connection(self) -> AmqpConnection:
        settings, where = self.settings, self.where
        conversation = await AmqpConnection.connect(
            host=where.host,
            port=where.amqp_port,
            tls=self._tls_context,
            client_id=settings.client_id,
            idle_timeout_s=settings.idle_timeout_s,
            timeout_s=min(CONNECT_TIMEOUT_S, settings.operation_timeout_s),
        )
        if self._authorizer is not None:
            self._authorizer.close()
        self._connection, self._management_links = conversation, {}
        self._authorizer = CbsAuthorizer(conversation, self._token_provider, where.host, settings.clock)
        conversation.lost.add_done_callback(lambda _: self._notify_watchers())
        self._notify_watchers()
        return conversation

    def drop_if_silent(self, limit_s: float) -> None:
        """Give up a connection on which nothing was heard for so long: whoever waits there is told now.

        Its peer is gone or stands still; if it comes back, TCP may take minutes to notice, and a new connection none.
        """
        conversation = self._connection
        if limit_s < MIN_SILENCE_S:
            return
        if conversation is not None and conversation.is_open and conversation.silence_s >= limit_s:
            log.warning("nothing was heard from %s for %.1f s: the connection is given up", self.address, limit_s)
            conversation.abort()
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
        """Ask an entity's `$management`; the answer if it is good (2xx), else its error.

        `doubt` is told if the operation may have been carried out although there is no good answer.
        """
        conversation = await self.authorized_connection(path)
        links = self._management_links.get(path)
        if links is None or links.failure is not None:
            if links is not None:
                links.detach()
            links = self._management_links[path] = RequestResponseLinks(conversation, f"{path}/$management")
        await links.open()
        properties: dict[str, object] = {"operation": operation, "type": "entity-mgmt"}
        if link_name is not None:
            properties["associated-link-name"] = link_name
        try:
            answer = await links.request(properties, dict(body), timeout_s=timeout_s, outcome=outcome)
            if not answer.is_success:
                raise answer.error
        except ServiceBusError as error:
            if outcome is not None:
                outcome.note_failure(error)
            raise
        return answer

    async def run_with_retries(
        self,
        description: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None,
        policy: RetryPolicy | None = None,
        outcome: OperationOutcome | None = None,
    ) -> T:
        """Try, and try again as the retry policy says, within the operation's time."""
        return await retry.run_with_retries(
            description,
            attempt,
            limit_s=self.settings.operation_timeout_s if timeout_s is None else timeout_s,
            policy=policy if policy is not None else self.settings.retry_policy,
            check_open=self.check_open,
            outcome=outcome,
        )
