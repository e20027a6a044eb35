"""Validation common to all entity descriptions, and the duration that means "never".

Owns the valid values of descriptions. Durations are in milliseconds; `FOREVER_MS` is .NET's largest time span, which
Service Bus uses for "never".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model import limits
from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

FOREVER_MS: Final = 922_337_203_685_477
"""Largest .NET time span, P10675199DT2H48M5.4775807S."""
STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
SIZES_MB: Final = (1024, 2048, 3072, 4096, 5120)
FRAGMENT_COUNT: Final = 16
"""Number of fragments in a partitioned entity; each fragment has the requested size."""
FRAGMENT_SHIFT: Final = 48
"""Number of bits in a sequence number below the fragment number."""
PARTITIONED_SIZES_MB: Final = tuple(FRAGMENT_COUNT * size_mb for size_mb in SIZES_MB)
"""Total sizes of partitioned entities, which are reported and also accepted in descriptions."""
FIXED_AT_CREATION: Final = {
    "enable_partitioning": "EnablePartitioning",
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
}
"""Fields that cannot change after an entity is created, with their names in Azure."""
SETTABLE_RANGES: Final = {
    "lock_duration_ms": (limits.LOCK_DURATION_MIN_MS, limits.LOCK_DURATION_MAX_MS),
    "default_time_to_live_ms": (1_000, FOREVER_MS),
    "duplicate_window_ms": (limits.DUPLICATE_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS),
    "max_delivery_count": (1, limits.MAX_DELIVERY_COUNT_MAX),
    "auto_delete_on_idle_ms": (limits.AUTO_DELETE_MIN_MS, FOREVER_MS),
    "max_message_kb": (1, 102_400),
}
"""Ranges of values that a description may request."""
_STORED_RANGES: Final = {
    **SETTABLE_RANGES,
    "duplicate_window_ms": (limits.EMULATOR_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS),
}
"""Ranges of values that an entity can have: the emulator's configuration file may set a shorter duplicate detection
window."""


def fragment_size_mb(max_size_mb: int) -> int:
    """Return the size of one fragment of a partitioned entity. `max_size_mb` is the requested or the total size."""
    return max_size_mb // FRAGMENT_COUNT if max_size_mb in PARTITIONED_SIZES_MB else max_size_mb


def partitioned_size_mb(max_size_mb: int) -> int:
    """Return the total size of all fragments of a partitioned entity."""
    return FRAGMENT_COUNT * fragment_size_mb(max_size_mb)


def check_description(values: Mapping[str, object]) -> None:
    """Raise ArgumentOutOfRange or InvalidArgument, with the name of the value, if a description is invalid."""
    for name, (lowest, highest) in _STORED_RANGES.items():
        value = values.get(name, lowest)
        if isinstance(value, int) and not lowest <= value <= highest:
            raise _out_of_range(name, value)
    size_mb = values.get("max_size_mb", SIZES_MB[0])
    if size_mb not in SIZES_MB and not (values.get("enable_partitioning") and size_mb in PARTITIONED_SIZES_MB):
        raise ArgumentOutOfRange(f"max_size_mb is {size_mb}; it can be {', '.join(map(str, SIZES_MB))}")
    if values["status"] not in STATUSES:
        raise InvalidArgument(f"status is {values['status']!r:.60}; it can be {', '.join(STATUSES)}")
    metadata = values.get("user_metadata")
    if isinstance(metadata, str) and len(metadata) > limits.USER_METADATA_MAX_CHARACTERS:
        max_characters = limits.USER_METADATA_MAX_CHARACTERS
        raise ArgumentOutOfRange(f"user_metadata has {len(metadata)} characters; it can have {max_characters}")


def check_duplicate_window(description: object, current: object = None) -> None:
    """Raise ArgumentOutOfRange if a description changes the duplicate detection window to a value below the minimum.

    An entity keeps a shorter window that the emulator's configuration file has set.
    """
    name = "duplicate_window_ms"
    window_ms = getattr(description, name, None)
    if window_ms is not None and window_ms < SETTABLE_RANGES[name][0] and window_ms != getattr(current, name, None):
        raise _out_of_range(name, window_ms)


def _out_of_range(name: str, value: int) -> ArgumentOutOfRange:
    lowest, highest = SETTABLE_RANGES[name]
    return ArgumentOutOfRange(f"{name} is {value}; it can be {lowest} to {highest}")
