"""The description of a queue, to and from XML.

Owns: the names and the order of its elements. How they are read and written is in `form` and `parts`.
"""

from __future__ import annotations

from typing import Final

from twinbus.model.atom import kinds, parts
from twinbus.model.atom.authorization import AuthorizationRules
from twinbus.model.atom.form import RULES, Form
from twinbus.model.atom.parts import Setting, Total
from twinbus.model.queue import QueueDescription, QueueRuntime

QUEUE: Final = Form(
    "QueueDescription",
    QueueDescription,
    QueueRuntime,
    {
        "LockDuration": Setting("lock_duration_ms", kinds.DURATION),
        "MaxSizeInMegabytes": Setting("max_size_mb", kinds.NUMBER),
        "RequiresDuplicateDetection": Setting("requires_duplicate_detection", kinds.BOOLEAN),
        "RequiresSession": Setting("requires_session", kinds.BOOLEAN),
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", kinds.DURATION),
        "DeadLetteringOnMessageExpiration": Setting("dead_lettering_on_expiration", kinds.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": Setting("duplicate_window_ms", kinds.DURATION),
        "MaxDeliveryCount": Setting("max_delivery_count", kinds.NUMBER),
        "EnableBatchedOperations": Setting("enable_batched_operations", kinds.BOOLEAN),
        "SizeInBytes": parts.SIZE,
        "MessageCount": Total(),
        "IsAnonymousAccessible": parts.NO,
        RULES: AuthorizationRules(),
        "Status": Setting("status", kinds.STATUS),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        "SupportOrdering": Setting("support_ordering", kinds.BOOLEAN),
        parts.COUNT_DETAILS: parts.MESSAGE_COUNTS,
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", kinds.DURATION),
        "EnablePartitioning": parts.PARTITIONING,
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "EnableExpress": Setting("enable_express", kinds.BOOLEAN),
        "ForwardTo": Setting("forward_to", kinds.ENTITY),
        "UserMetadata": Setting("user_metadata", kinds.TEXT),
        "ForwardDeadLetteredMessagesTo": Setting("forward_dead_lettered_to", kinds.ENTITY),
        "MaxMessageSizeInKilobytes": Setting("max_message_kb", kinds.NUMBER),
    },
)
