"""The client: factories, senders, receivers, sessions, transactions and management, on asyncio.

    from twinbus.client import BrokeredMessage, MessagingFactory

    async with MessagingFactory.from_connection_string(text) as factory:
        await factory.create_queue_client("orders").send(BrokeredMessage("two pounds of apples"))

The client works with twinbus and with Azure Service Bus. `twinbus.client.pairing` pairs two namespaces, so that sends
succeed while the primary is down. `twinbus.client.sync` has the same classes for applications without asyncio.
"""

from twinbus.client.browser import MessageBrowser
from twinbus.client.clients import QueueClient, SubscriptionClient, TopicClient
from twinbus.client.connection_string import ConnectionString
from twinbus.client.factory import MessagingFactory
from twinbus.client.inspector.bulk_operation import BulkProgress
from twinbus.client.inspector.message_inspector import (
    DeadLetterReason,
    DeadLetterSummary,
    MessageInspector,
    SearchPage,
)
from twinbus.client.management import NamespaceManager, NamespaceMonitor
from twinbus.client.message_session import MessageSession
from twinbus.client.receiver import MessageReceiver, ReceiveMode
from twinbus.client.retry import NO_RETRY, RetryPolicy
from twinbus.client.sender import MessageSender
from twinbus.client.settings import FactorySettings, FactoryState
from twinbus.client.tokens import Token, TokenProvider
from twinbus.client.transaction import Transaction
from twinbus.model.message import BrokeredMessage

__all__ = [
    "NO_RETRY",
    "BrokeredMessage",
    "BulkProgress",
    "ConnectionString",
    "DeadLetterReason",
    "DeadLetterSummary",
    "FactorySettings",
    "FactoryState",
    "MessageBrowser",
    "MessageInspector",
    "MessageReceiver",
    "MessageSender",
    "MessageSession",
    "MessagingFactory",
    "NamespaceManager",
    "NamespaceMonitor",
    "QueueClient",
    "ReceiveMode",
    "RetryPolicy",
    "SearchPage",
    "SubscriptionClient",
    "Token",
    "TokenProvider",
    "TopicClient",
    "Transaction",
]
