"""Names of message annotations in Service Bus, and of application properties on parked messages.

Owns these names. mypyc inlines the `Final` constants into compiled modules.
"""

from __future__ import annotations

from typing import Final

# --- message annotations ----------------------------------------------------------------------------------------------

PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
"""Sequence number in the entity that the message came from: its topic, or the entity that forwarded it."""
LOCKED_UNTIL: Final = "x-opt-locked-until"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105  # not a secret
"""Name of a delivery annotation."""
MESSAGE_STATE: Final = "x-opt-message-state"
DEADLETTER_SOURCE: Final = "x-opt-deadletter-source"
PARTITION_ID: Final = "x-opt-partition-id"

DEFERRED_STATE: Final = 1
SCHEDULED_STATE: Final = 2
"""Value of `MESSAGE_STATE` for scheduled messages; `DEFERRED_STATE` is for deferred messages, and 0 means active."""

# --- application properties of a parked message -----------------------------------------------------------------------

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME_ALIAS: Final = "x-ms-scheduledenqueuetimeutc"
PARKED_AT: Final = "x-ms-parked-at"
PARKED_FOR: Final = "x-ms-parked-for"
PARKED_FOR_MS: Final = "x-ms-parked-for-ms"
"""Same value as `PARKED_FOR`, as a long in milliseconds: few SDKs can read .NET's duration type."""
BACKLOG_QUEUE_INFIX: Final = "x-servicebus-transfer"
"""Infix in the path of a backlog queue, between the name of the primary and the number of the queue."""
