"""Management of a namespace over HTTP: its queues, topics, subscriptions, rules and keys.

    from twinbus.client.management import NamespaceManager, QueueDescription

    async with NamespaceManager.from_connection_string(text) as manager:
        await manager.create_queue("orders", QueueDescription(max_delivery_count=5))

Owns the management operations and the errors in their responses. The XML form of descriptions is in `model.atom`. This
package knows nothing of sending and receiving.
"""

from twinbus.client.management.entity_import import EntityChange, ImportAction
from twinbus.client.management.manager import NamespaceManager
from twinbus.client.management.monitor import NamespaceMonitor
from twinbus.model.authorization import AuthorizationRule
from twinbus.model.description import FOREVER_MS
from twinbus.model.entity_file.emulator_writer import write_emulator
from twinbus.model.entity_file.file import read_plan
from twinbus.model.entity_file.plan import Plan
from twinbus.model.entity_file.section import InvalidConfig
from twinbus.model.entity_file.toml_writer import write_toml
from twinbus.model.info import NamespaceInfo, QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

__all__ = [
    "FOREVER_MS",
    "AuthorizationRule",
    "CorrelationFilter",
    "EntityChange",
    "FalseFilter",
    "ImportAction",
    "InvalidConfig",
    "NamespaceInfo",
    "NamespaceManager",
    "NamespaceMonitor",
    "Plan",
    "QueueDescription",
    "QueueInfo",
    "QueueRuntime",
    "RuleDescription",
    "SqlAction",
    "SqlFilter",
    "SubscriptionDescription",
    "SubscriptionInfo",
    "TopicDescription",
    "TopicInfo",
    "TopicRuntime",
    "TrueFilter",
    "Value",
    "read_plan",
    "write_emulator",
    "write_toml",
]
