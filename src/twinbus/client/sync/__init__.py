"""The client for applications without asyncio: the same classes and methods, and every call waits for its result.

    from twinbus.client.sync import BrokeredMessage, MessagingFactory

    with MessagingFactory.from_connection_string(text) as factory:
        factory.create_queue_client("orders").send(BrokeredMessage("two pounds of apples"))

All classes are thread-safe. Each object wraps an object from `twinbus.client`: its calls run on an event loop in a
background thread, and raise the same errors.
"""

from twinbus.client.connection_string import ConnectionString
from twinbus.client.receiver import ReceiveMode
from twinbus.client.retry import NO_RETRY, RetryPolicy
from twinbus.client.settings import FactorySettings, FactoryState
from twinbus.client.sync.clients import (
    MessageReceiver,
    MessageSender,
    MessageSession,
    QueueClient,
    SubscriptionClient,
    TopicClient,
    Transaction,
)
from twinbus.client.sync.factory import MessagingFactory
from twinbus.client.sync.management import NamespaceManager
from twinbus.client.sync.message_inspector import MessageInspector
from twinbus.client.sync.monitoring import NamespaceMonitor
from twinbus.client.sync.pairing import Pairing, SendAvailabilityPairedNamespaceOptions
from twinbus.client.tokens import Token, TokenProvider
from twinbus.model.message import BrokeredMessage

__all__ = [
    "NO_RETRY",
    "BrokeredMessage",
    "ConnectionString",
    "FactorySettings",
    "FactoryState",
    "MessageInspector",
    "MessageReceiver",
    "MessageSender",
    "MessageSession",
    "MessagingFactory",
    "NamespaceManager",
    "NamespaceMonitor",
    "Pairing",
    "QueueClient",
    "ReceiveMode",
    "RetryPolicy",
    "SendAvailabilityPairedNamespaceOptions",
    "SubscriptionClient",
    "Token",
    "TokenProvider",
    "TopicClient",
    "Transaction",
]
