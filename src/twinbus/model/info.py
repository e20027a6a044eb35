"""What is known of the entities of a namespace: what each is told to be, and what it holds now.

Owns: the answers to those who manage a namespace, on both sides of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from twinbus.model.queue import QueueDescription, QueueRuntime
    from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue as it is now."""

    path: str
    """As it was spelled when the queue was created."""
    description: QueueDescription
    runtime: QueueRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as it is now."""

    path: str
    description: TopicDescription
    runtime: TopicRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """A subscription as it is now."""

    path: str
    """`<topic>/Subscriptions/<name>`."""
    topic: str
    name: str
    description: SubscriptionDescription
    runtime: QueueRuntime


EntityInfo: TypeAlias = "QueueInfo | TopicInfo | SubscriptionInfo"
Description: TypeAlias = "QueueDescription | TopicDescription | SubscriptionDescription"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """A namespace. Times are milliseconds of the wall clock."""

    name: str
    created_ms: int
    modified_ms: int
    sku: str = "Standard"
    """Its tier: Basic, Standard or Premium."""
    messaging_units: int | None = None
    """What it has of a Premium namespace's."""
    alias: str | None = None
    """The name that it shares with its geo-disaster recovery peer."""
