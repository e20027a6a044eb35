"""Names that Service Bus gives to a message's annotations, and pairing to the properties of a parked message.

Owns: each name, once. Compiled files get the text of a `Final` name from here as if it was written there.
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
"""The sequence number in the entity that a message came from: its topic, or where it was forwarded."""
LOCKED_UNTIL: Final = "x-opt-locked-until"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105  # a name
"""A delivery annotation."""
MESSAGE_STATE: Final = "x-opt-message-state"
DEADLETTER_SOURCE: Final = "x-opt-deadletter-source"
PARTITION_ID: Final = "x-opt-partition-id"

DEFERRED_STATE: Final = 1
SCHEDULED_STATE: Final = 2
"""Values of `MESSAGE_STATE`; that of an active message is 0."""

# --- application properties of a parked message -----------------------------------------------------------------------

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME_ALIAS: Final = "x-ms-scheduledenqueuetimeutc"
PARKED_AT: Final = "x-ms-parked-at"
PARKED_FOR: Final = "x-ms-parked-for"
PARKED_FOR_MS: Final = "x-ms-parked-for-ms"
"""The same as a long of milliseconds: few SDKs can read .NET's duration."""
BACKLOG_QUEUE_INFIX: Final = "x-servicebus-transfer"
"""Stands between the name of the primary and the number of a backlog queue in the path of that queue."""
