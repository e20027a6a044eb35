"""Entities and namespaces as management operations return them: settings and current contents.

Owns the results of management calls, for both the server and the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from twinbus.model.queue import QueueDescription, QueueRuntime
    from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """Settings and current contents of a queue."""

    path: str
    """Path as spelled when the queue was created."""
    description: QueueDescription
    runtime: QueueRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """Settings and current contents of a topic."""

    path: str
    description: TopicDescription
    runtime: TopicRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """Settings and current contents of a subscription."""

    path: str
    """Path of the form `<topic>/Subscriptions/<name>`."""
    topic: str
    name: str
    description: SubscriptionDescription
    runtime: QueueRuntime


EntityInfo: TypeAlias = "QueueInfo | TopicInfo | SubscriptionInfo"
Description: TypeAlias = "QueueDescription | TopicDescription | SubscriptionDescription"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """Properties of a namespace. Times are wall-clock milliseconds."""

    name: str
    created_ms: int
    modified_ms: int
    sku: str = "Standard"
    """Tier: Basic, Standard or Premium."""
    messaging_units: int | None = None
    """Number of messaging units in a Premium namespace, or None."""
    alias: str | None = None
    """Alias that the namespace shares with its geo-disaster recovery peer, or None."""
