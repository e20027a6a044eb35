"""The blocking messaging factory, a wrapper around `twinbus.client.factory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from twinbus.client import factory
from twinbus.client.receiver import ReceiveMode
from twinbus.client.sync.background_loop import (
    BlockingObject,
    call_blocking,
    close_at_exit,
    close_pair_at_exit,
    run_blocking,
)
from twinbus.client.sync.clients import (
    MessageReceiver,
    MessageSender,
    QueueClient,
    SubscriptionClient,
    TopicClient,
    Transaction,
)
from twinbus.client.sync.message_inspector import MessageInspector
from twinbus.client.sync.pairing import Pairing

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from twinbus.client.settings import ClientOptions, FactoryState
    from twinbus.client.sync.pairing import SendAvailabilityPairedNamespaceOptions


class MessagingFactory(BlockingObject[factory.MessagingFactory]):
    """Connection to one namespace; creates blocking senders, receivers, clients and transactions."""

    def __init__(self, inner: factory.MessagingFactory) -> None:
        """Wrap `inner`, which runs on the background loop. Applications usually call `from_connection_string`."""
        super().__init__(inner)
        close_at_exit(inner)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a factory for the namespace of a connection string. Raise ValueError if the string is invalid."""
        return cls(call_blocking(lambda: factory.MessagingFactory.from_connection_string(text, **options)))

    # --- clients, senders and receivers -------------------------------------------------------------------------------

    def create_queue_client(self, path: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK) -> QueueClient:
        """Create a client that sends to a queue and receives from it."""
        return QueueClient(call_blocking(lambda: self.inner.create_queue_client(path, mode)))

    def create_topic_client(self, path: str) -> TopicClient:
        """Create a client that sends to a topic."""
        return TopicClient(call_blocking(lambda: self.inner.create_topic_client(path)))

    def create_subscription_client(
        self, topic: str, name: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> SubscriptionClient:
        """Create a client that receives from a subscription."""
        return SubscriptionClient(call_blocking(lambda: self.inner.create_subscription_client(topic, name, mode)))

    def create_message_sender(self, path: str, *, via: str | None = None) -> MessageSender:
        """Create a sender for a queue or a topic. With `via`, messages go through that queue, as transactions need."""
        return MessageSender(call_blocking(lambda: self.inner.create_message_sender(path, via=via)))

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
        """Create a receiver for a queue, a subscription (`topic/Subscriptions/name`), or a sub-queue of either."""
        inner = call_blocking(
            lambda: self.inner.create_message_receiver(
                path,
                mode,
                prefetch=prefetch,
                epoch=epoch,
                auto_renew=auto_renew,
                silence_limit=silence_limit,
                if_free=if_free,
            )
        )
        return MessageReceiver(inner)

    def create_message_inspector(self, path: str) -> MessageInspector:
        """Create an inspector, which finds, resubmits, moves and deletes messages without receiving them."""
        return MessageInspector(call_blocking(lambda: self.inner.create_message_inspector(path)))

    def transaction(self) -> Transaction:
        """Create a transaction: its sends and settlements are committed together or rolled back together."""
        return Transaction(call_blocking(self.inner.transaction))

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Host and port of the namespace."""
        return self.inner.address

    @property
    def state(self) -> FactoryState:
        """State of the factory: open, closed or faulted."""
        return self.inner.state

    @property
    def fault(self) -> BaseException | None:
        """Error that caused the factory to fault."""
        return self.inner.fault

    @property
    def is_connected(self) -> bool:
        """Whether the factory has an open connection."""
        return self.inner.is_connected

    def watch(self, watcher: Callable[[MessagingFactory], None]) -> None:
        """Call `watcher` on the client's own thread whenever `state` or `is_connected` has changed.

        The watcher must not block: a blocking call raises RuntimeError.
        """
        call_blocking(lambda: self.inner.watch(lambda _: watcher(self)))

    # --- pairing ------------------------------------------------------------------------------------------------------

    def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
        """Pair this namespace, the primary, with a secondary, so that sends succeed while the primary is down."""
        inner_options = options.inner()
        pairing = Pairing(run_blocking(lambda: self.inner.pair_namespace(inner_options)))
        close_pair_at_exit(pairing.inner)
        options.backlog_queue_count = inner_options.backlog_queue_count
        return pairing
