"""Description of queues, and their runtime information.

Owns the properties of a queue and their defaults. `description` validates values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from twinbus.model.authorization import AuthorizationRule, check_authorization_rules
from twinbus.model.description import FOREVER_MS, check_description


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """Settings of a queue."""

    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_to: str | None = None
    max_message_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def __post_init__(self) -> None:
        """Raise an error if a value is invalid for a queue."""
        check_description(asdict(self))
        check_authorization_rules(self.authorization_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRuntime:
    """Current contents of a queue or subscription. Times are wall-clock milliseconds."""

    active_count: int
    dead_letter_count: int
    size_bytes: int
    created_ms: int
    updated_ms: int
    accessed_ms: int
    is_available: bool = True
    """False while the store does not work; the counts are then the last known values."""
    scheduled_count: int = 0
    deferred_count: int = 0
    transfer_count: int = 0
    transfer_dead_letter_count: int = 0
