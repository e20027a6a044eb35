"""The quota of an entity: the maximum size of its messages and session states (MaxSizeInMegabytes)."""

from __future__ import annotations

from twinbus.model.errors import QuotaExceeded


def check_quota(path: str, stored_bytes: int, added_bytes: int, limit_bytes: int) -> None:
    """Raise QuotaExceeded if the added bytes do not fit in addition to the stored bytes."""
    if stored_bytes + added_bytes > limit_bytes:
        raise QuotaExceeded(
            f"The maximum entity size has been reached or exceeded for '{path}': it holds {stored_bytes:,} "
            f"bytes of {limit_bytes:,}, and {added_bytes:,} more do not fit. Receive messages, also from its "
            "dead-letter queue, clear session states, or make the entity larger (MaxSizeInMegabytes)."
        )
