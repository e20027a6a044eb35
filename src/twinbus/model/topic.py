"""Descriptions of topics and subscriptions, and their runtime information.

Owns the properties of topics and subscriptions, and their defaults. `description` validates values; `rule` has the
rules of subscriptions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from twinbus.model.authorization import AuthorizationRule, check_authorization_rules
from twinbus.model.description import FOREVER_MS, check_description


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """Settings of a topic."""

    default_time_to_live_ms: int = FOREVER_MS
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    """Stored and returned, but without effect, as in Service Bus today."""
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def __post_init__(self) -> None:
        """Raise an error if a value is invalid for a topic."""
        check_description(asdict(self))
        check_authorization_rules(self.authorization_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """Settings of a subscription."""

    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_errors: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    user_metadata: str | None = None

    def __post_init__(self) -> None:
        """Raise an error if a value is invalid for a subscription."""
        check_description(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRuntime:
    """Current contents of a topic: scheduled messages, and a size that includes the messages in its subscriptions."""

    scheduled_count: int
    size_bytes: int
    subscription_count: int
    created_ms: int
    updated_ms: int
    accessed_ms: int
    is_available: bool = True
    sql_filter_count: int = 0
    correlation_filter_count: int = 0
