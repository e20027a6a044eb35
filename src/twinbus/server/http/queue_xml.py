"""The description of a queue, to and from XML.

Owns: the names and the order of its elements. How they are read and written is in `description_xml`.
"""

from __future__ import annotations

from typing import Final

from twinbus.model.queue import QueueDescription
from twinbus.server.http import description_xml as xml
from twinbus.server.http.authorization_xml import AuthorizationRules
from twinbus.server.http.description_xml import Counts, Form, Setting

QUEUE: Final = Form(
    "QueueDescription",
    QueueDescription,
    {
        "LockDuration": Setting("lock_duration_ms", xml.DURATION),
        "MaxSizeInMegabytes": Setting("max_size_mb", xml.NUMBER),
        "RequiresDuplicateDetection": Setting("requires_duplicate_detection", xml.BOOLEAN),
        "RequiresSession": Setting("requires_session", xml.BOOLEAN),
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", xml.DURATION),
        "DeadLetteringOnMessageExpiration": Setting("dead_lettering_on_expiration", xml.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": Setting("duplicate_window_ms", xml.DURATION),
        "MaxDeliveryCount": Setting("max_delivery_count", xml.NUMBER),
        "EnableBatchedOperations": Setting("enable_batched_operations", xml.BOOLEAN),
        "SizeInBytes": xml.SIZE,
        "MessageCount": xml.MESSAGE_COUNT,
        "IsAnonymousAccessible": xml.NO,
        xml.RULES: AuthorizationRules(),
        "Status": Setting("status", xml.STATUS),
        "CreatedAt": xml.CREATED_AT,
        "UpdatedAt": xml.UPDATED_AT,
        "AccessedAt": xml.ACCESSED_AT,
        "SupportOrdering": Setting("support_ordering", xml.BOOLEAN),
        "CountDetails": Counts(xml.message_counts),
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", xml.DURATION),
        "EnablePartitioning": xml.PARTITIONING,
        "EntityAvailabilityStatus": xml.AVAILABILITY,
        "EnableExpress": Setting("enable_express", xml.BOOLEAN),
        "ForwardTo": Setting("forward_to", xml.ENTITY),
        "UserMetadata": Setting("user_metadata", xml.TEXT),
        "ForwardDeadLetteredMessagesTo": Setting("forward_dead_lettered_to", xml.ENTITY),
        "MaxMessageSizeInKilobytes": Setting("max_message_kb", xml.NUMBER),
    },
)
