"""The blocking messaging factory. What it does is in `twinbus.client.factory`."""

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
from twinbus.client.sync.pairing import Pairing

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from twinbus.client.settings import ClientOptions, FactoryState
    from twinbus.client.sync.pairing import SendAvailabilityPairedNamespaceOptions


class MessagingFactory(BlockingObject[factory.MessagingFactory]):
    """One namespace, as an application uses it."""

    def __init__(self, inner: factory.MessagingFactory) -> None:
        """`from_connection_string` is the usual way. `inner` does the work, on the loop in the background."""
        super().__init__(inner)
        close_at_exit(inner)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """A factory for the namespace that a connection string names. ValueError says what is wrong with the string."""
        return cls(call_blocking(lambda: factory.MessagingFactory.from_connection_string(text, **options)))

    # --- what it makes ------------------------------------------------------------------------------------------------

    def create_queue_client(self, path: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK) -> QueueClient:
        """A client that sends to a queue and receives from it."""
        return QueueClient(call_blocking(lambda: self.inner.create_queue_client(path, mode)))

    def create_topic_client(self, path: str) -> TopicClient:
        """A client that sends to a topic."""
        return TopicClient(call_blocking(lambda: self.inner.create_topic_client(path)))

    def create_subscription_client(
        self, topic: str, name: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> SubscriptionClient:
        """A client that receives from a subscription."""
        return SubscriptionClient(call_blocking(lambda: self.inner.create_subscription_client(topic, name, mode)))

    def create_message_sender(self, path: str, *, via: str | None = None) -> MessageSender:
        """A sender to a queue or a topic. With `via` messages go to that queue first: for transactions."""
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
        """A receiver of a queue, a subscription (`topic/Subscriptions/name`), or of a sub-queue of one of these."""
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

    def transaction(self) -> Transaction:
        """Operations that happen together, or not at all."""
        return Transaction(call_blocking(self.inner.transaction))

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the namespace is."""
        return self.inner.address

    @property
    def state(self) -> FactoryState:
        """Open, closed or faulted."""
        return self.inner.state

    @property
    def fault(self) -> BaseException | None:
        """Why it has faulted."""
        return self.inner.fault

    @property
    def is_connected(self) -> bool:
        """There is a connection now."""
        return self.inner.is_connected

    def watch(self, watcher: Callable[[MessagingFactory], None]) -> None:
        """Have `watcher` called, on the client's own thread, whenever `state` or `is_connected` has changed.

        It must not wait there: a call that waits raises RuntimeError.
        """
        call_blocking(lambda: self.inner.watch(lambda _: watcher(self)))

    # --- pairing ------------------------------------------------------------------------------------------------------

    def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
        """Pair this namespace, the primary, with a secondary: from now on sends survive its loss."""
        given = options.inner()
        pairing = Pairing(run_blocking(lambda: self.inner.pair_namespace(given)))
        close_pair_at_exit(pairing.inner)
        options.backlog_queue_count = given.backlog_queue_count
        return pairing
