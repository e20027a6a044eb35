"""The description of a topic, to and from XML.

Owns: the names and the order of its elements, and what is counted of a topic. How they are read and written is in
`description_xml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.topic import TopicDescription
from twinbus.server.http import description_xml as xml
from twinbus.server.http.authorization_xml import AuthorizationRules
from twinbus.server.http.description_xml import Counts, Form, Reading, Setting

if TYPE_CHECKING:
    from twinbus.server.administration import TopicInfo


def _message_counts(info: TopicInfo) -> dict[str, int]:
    """Only what is for later is held by the topic itself."""
    return {
        "ActiveMessageCount": 0,
        "DeadLetterMessageCount": 0,
        "ScheduledMessageCount": info.runtime.scheduled_count,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }


TOPIC: Final = Form(
    "TopicDescription",
    TopicDescription,
    {
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", xml.DURATION),
        "MaxSizeInMegabytes": Setting("max_size_mb", xml.NUMBER),
        "RequiresDuplicateDetection": Setting("requires_duplicate_detection", xml.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": Setting("duplicate_window_ms", xml.DURATION),
        "EnableBatchedOperations": Setting("enable_batched_operations", xml.BOOLEAN),
        "SizeInBytes": xml.SIZE,
        "FilteringMessagesBeforePublishing": Setting("filtering_messages_before_publishing", xml.BOOLEAN),
        "IsAnonymousAccessible": xml.NO,
        xml.RULES: AuthorizationRules(),
        "Status": Setting("status", xml.STATUS),
        "CreatedAt": xml.CREATED_AT,
        "UpdatedAt": xml.UPDATED_AT,
        "AccessedAt": xml.ACCESSED_AT,
        "SupportOrdering": Setting("support_ordering", xml.BOOLEAN),
        "CountDetails": Counts(_message_counts),
        "SubscriptionCount": Reading(lambda info: info.runtime.subscription_count),
        "SqlFilterCount": Reading(lambda info: info.runtime.sql_filter_count, since=xml.FILTER_COUNTS_SINCE),
        "CorrelationFilterCount": Reading(
            lambda info: info.runtime.correlation_filter_count, since=xml.FILTER_COUNTS_SINCE
        ),
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", xml.DURATION),
        "EnablePartitioning": xml.PARTITIONING,
        "EntityAvailabilityStatus": xml.AVAILABILITY,
        "EnableSubscriptionPartitioning": xml.NO,
        "EnableExpress": Setting("enable_express", xml.BOOLEAN),
        "UserMetadata": Setting("user_metadata", xml.TEXT),
        "MaxMessageSizeInKilobytes": Setting("max_message_kb", xml.NUMBER),
    },
)
