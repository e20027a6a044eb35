"""A queue, as its owner describes it.

Owns: the properties of a queue, their defaults and what is valid. Durations are milliseconds; `FOREVER_MS` is .NET's
largest time span, which Service Bus means by "never".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.model import limits
from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

FOREVER_MS: Final = 922_337_203_685_477
"""P10675199DT2H48M5.4775807S."""
STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
SIZES_MB: Final = (1024, 2048, 3072, 4096, 5120)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """What a queue is told to be."""

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

    def __post_init__(self) -> None:
        """Refuse what no queue can be."""
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ArgumentOutOfRange(f"{name} is {value}; it can be {lowest} to {highest}")
        if self.max_size_mb not in SIZES_MB:
            raise ArgumentOutOfRange(f"max_size_mb is {self.max_size_mb}; it can be {', '.join(map(str, SIZES_MB))}")
        if self.status not in STATUSES:
            raise InvalidArgument(f"status is {self.status!r:.60}; it can be {', '.join(STATUSES)}")
        if self.user_metadata and len(self.user_metadata) > limits.USER_METADATA_MAX_CHARACTERS:
            length, most = len(self.user_metadata), limits.USER_METADATA_MAX_CHARACTERS
            raise ArgumentOutOfRange(f"user_metadata has {length} characters; it can have {most}")


_RANGES: Final = {
    "lock_duration_ms": (limits.LOCK_DURATION_MIN_MS, limits.LOCK_DURATION_MAX_MS),
    "default_time_to_live_ms": (1_000, FOREVER_MS),
    "duplicate_window_ms": (limits.DUPLICATE_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS),
    "max_delivery_count": (1, limits.MAX_DELIVERY_COUNT_MAX),
    "auto_delete_on_idle_ms": (limits.AUTO_DELETE_MIN_MS, FOREVER_MS),
    "max_message_kb": (1, 102_400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRuntime:
    """What a queue holds now. Times are milliseconds of the wall clock."""

    active_count: int
    dead_letter_count: int
    size_bytes: int
    created_ms: int
    updated_ms: int
    accessed_ms: int
    is_available: bool = True
    """False while its store does not work: the numbers are then the last that were known."""
    scheduled_count: int = 0
    deferred_count: int = 0
    transfer_count: int = 0
    transfer_dead_letter_count: int = 0
