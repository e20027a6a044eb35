"""XML descriptions of namespaces, queues, topics and subscriptions.

Owns the names and the order of their elements. `description_codec` and `elements` read and write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.atom import elements, envelope, rule, value_formats
from twinbus.model.atom.authorization import AuthorizationRulesElement
from twinbus.model.atom.description_codec import AUTHORIZATION_RULES, DescriptionCodec
from twinbus.model.atom.elements import CountDetailsElement, MessageCountElement, RuntimeValueElement, SettingElement
from twinbus.model.info import NamespaceInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import RuleDescription

NAMESPACE_TAG: Final = "NamespaceInfo"
_NAMESPACE_TYPE: Final = "Messaging"


def write_namespace(info: NamespaceInfo) -> Element:
    """Write the description of a namespace."""
    root = envelope.new_description(NAMESPACE_TAG)
    envelope.add_element(root, "CreatedTime", envelope.format_timestamp(info.created_ms))
    envelope.add_element(root, "MessagingSKU", info.sku)
    envelope.add_element(root, "ModifiedTime", envelope.format_timestamp(info.modified_ms))
    envelope.add_element(root, "Name", info.name)
    envelope.add_element(root, "NamespaceType", _NAMESPACE_TYPE)
    return root


def read_namespace(root: Element) -> NamespaceInfo:
    """Read the description of a namespace from a response."""
    texts = {name: envelope.element_text(element).strip() for name, element in envelope.children_by_name(root).items()}
    units = texts.get("MessagingUnits")
    return NamespaceInfo(
        name=texts.get("Name", ""),
        created_ms=envelope.parse_timestamp(texts.get("CreatedTime", envelope.NEVER)),
        modified_ms=envelope.parse_timestamp(texts.get("ModifiedTime", envelope.NEVER)),
        sku=texts.get("MessagingSKU", ""),
        messaging_units=value_formats.NUMBER.read(units) if units else None,
        alias=texts.get("Alias") or None,
    )


DEFAULT_RULE_TAG: Final = "DefaultRuleDescription"
_BEFORE_DEFAULT_RULE: Final = (
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
)
"""Elements that precede the default rule: Azure requires the order of its contract and ignores elements that come too
late."""
SUBSCRIPTION_CODEC: Final = DescriptionCodec(
    "SubscriptionDescription",
    SubscriptionDescription,
    QueueRuntime,
    {
        "LockDuration": SettingElement("lock_duration_ms", value_formats.DURATION),
        "RequiresSession": SettingElement("requires_session", value_formats.BOOLEAN),
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", value_formats.DURATION),
        "DeadLetteringOnMessageExpiration": SettingElement("dead_lettering_on_expiration", value_formats.BOOLEAN),
        "DeadLetteringOnFilterEvaluationExceptions": SettingElement(
            "dead_lettering_on_filter_errors", value_formats.BOOLEAN
        ),
        "MessageCount": MessageCountElement(),
        "MaxDeliveryCount": SettingElement("max_delivery_count", value_formats.NUMBER),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", value_formats.BOOLEAN),
        "Status": SettingElement("status", value_formats.STATUS),
        "ForwardTo": SettingElement("forward_to", value_formats.ENTITY_PATH),
        "CreatedAt": elements.CREATED_AT,
        "UpdatedAt": elements.UPDATED_AT,
        "AccessedAt": elements.ACCESSED_AT,
        elements.COUNT_DETAILS: elements.MESSAGE_COUNTS,
        "ForwardDeadLetteredMessagesTo": SettingElement("forward_dead_lettered_to", value_formats.ENTITY_PATH),
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", value_formats.DURATION),
        "EntityAvailabilityStatus": elements.AVAILABILITY,
        "UserMetadata": SettingElement("user_metadata", value_formats.TEXT),
    },
)


def read_default_rule(root: Element) -> RuleDescription | None:
    """Return the first rule of a new subscription, or None if the subscription starts with a rule for all messages."""
    element = envelope.children_by_name(root).get(DEFAULT_RULE_TAG)
    return rule.read(element) if element is not None else None


def add_default_rule(root: Element, description: RuleDescription) -> None:
    """Add a default rule to the description of a subscription to be created."""
    position = sum(child.tag in _BEFORE_DEFAULT_RULE for child in root)
    root.insert(position, rule.write_request(description, DEFAULT_RULE_TAG))


TOPIC_MESSAGE_COUNTS: Final = CountDetailsElement(
    {
        "ActiveMessageCount": None,
        "DeadLetterMessageCount": None,
        "ScheduledMessageCount": "scheduled_count",
        "TransferMessageCount": None,
        "TransferDeadLetterMessageCount": None,
    }
)
"""Message counts of a topic; a topic itself holds only scheduled messages."""

TOPIC_CODEC: Final = DescriptionCodec(
    "TopicDescription",
    TopicDescription,
    TopicRuntime,
    {
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", value_formats.DURATION),
        "MaxSizeInMegabytes": SettingElement("max_size_mb", value_formats.NUMBER),
        "RequiresDuplicateDetection": SettingElement("requires_duplicate_detection", value_formats.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": SettingElement("duplicate_window_ms", value_formats.DURATION),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", value_formats.BOOLEAN),
        "SizeInBytes": elements.SIZE,
        "FilteringMessagesBeforePublishing": SettingElement(
            "filtering_messages_before_publishing", value_formats.BOOLEAN
        ),
        "IsAnonymousAccessible": elements.ALWAYS_FALSE,
        AUTHORIZATION_RULES: AuthorizationRulesElement(),
        "Status": SettingElement("status", value_formats.STATUS),
        "CreatedAt": elements.CREATED_AT,
        "UpdatedAt": elements.UPDATED_AT,
        "AccessedAt": elements.ACCESSED_AT,
        "SupportOrdering": SettingElement("support_ordering", value_formats.BOOLEAN),
        elements.COUNT_DETAILS: TOPIC_MESSAGE_COUNTS,
        "SubscriptionCount": RuntimeValueElement("subscription_count", value_formats.NUMBER),
        "SqlFilterCount": RuntimeValueElement(
            "sql_filter_count", value_formats.NUMBER, since_version=value_formats.FILTER_COUNTS_SINCE
        ),
        "CorrelationFilterCount": RuntimeValueElement(
            "correlation_filter_count", value_formats.NUMBER, since_version=value_formats.FILTER_COUNTS_SINCE
        ),
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", value_formats.DURATION),
        "EnablePartitioning": elements.PARTITIONING,
        "EntityAvailabilityStatus": elements.AVAILABILITY,
        "EnableSubscriptionPartitioning": elements.ALWAYS_FALSE,
        "EnableExpress": SettingElement("enable_express", value_formats.BOOLEAN),
        "UserMetadata": SettingElement("user_metadata", value_formats.TEXT),
        "MaxMessageSizeInKilobytes": SettingElement("max_message_kb", value_formats.NUMBER),
    },
)


QUEUE_CODEC: Final = DescriptionCodec(
    "QueueDescription",
    QueueDescription,
    QueueRuntime,
    {
        "LockDuration": SettingElement("lock_duration_ms", value_formats.DURATION),
        "MaxSizeInMegabytes": SettingElement("max_size_mb", value_formats.NUMBER),
        "RequiresDuplicateDetection": SettingElement("requires_duplicate_detection", value_formats.BOOLEAN),
        "RequiresSession": SettingElement("requires_session", value_formats.BOOLEAN),
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", value_formats.DURATION),
        "DeadLetteringOnMessageExpiration": SettingElement("dead_lettering_on_expiration", value_formats.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": SettingElement("duplicate_window_ms", value_formats.DURATION),
        "MaxDeliveryCount": SettingElement("max_delivery_count", value_formats.NUMBER),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", value_formats.BOOLEAN),
        "SizeInBytes": elements.SIZE,
        "MessageCount": MessageCountElement(),
        "IsAnonymousAccessible": elements.ALWAYS_FALSE,
        AUTHORIZATION_RULES: AuthorizationRulesElement(),
        "Status": SettingElement("status", value_formats.STATUS),
        "CreatedAt": elements.CREATED_AT,
        "UpdatedAt": elements.UPDATED_AT,
        "AccessedAt": elements.ACCESSED_AT,
        "SupportOrdering": SettingElement("support_ordering", value_formats.BOOLEAN),
        elements.COUNT_DETAILS: elements.MESSAGE_COUNTS,
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", value_formats.DURATION),
        "EnablePartitioning": elements.PARTITIONING,
        "EntityAvailabilityStatus": elements.AVAILABILITY,
        "EnableExpress": SettingElement("enable_express", value_formats.BOOLEAN),
        "ForwardTo": SettingElement("forward_to", value_formats.ENTITY_PATH),
        "UserMetadata": SettingElement("user_metadata", value_formats.TEXT),
        "ForwardDeadLetteredMessagesTo": SettingElement("forward_dead_lettered_to", value_formats.ENTITY_PATH),
        "MaxMessageSizeInKilobytes": SettingElement("max_message_kb", value_formats.NUMBER),
    },
)
