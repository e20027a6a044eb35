"""The description of a subscription, to and from XML.

Owns: the names and the order of its elements, and the rule that may come with them. How they are read and written is in
`form` and `parts`, rules are in `rule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.atom import envelope, kinds, parts, rule
from twinbus.model.atom.form import DescriptionCodec
from twinbus.model.atom.parts import MessageCountElement, SettingElement
from twinbus.model.queue import QueueRuntime
from twinbus.model.topic import SubscriptionDescription

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import RuleDescription

DEFAULT_RULE_TAG: Final = "DefaultRuleDescription"
_BEFORE_DEFAULT_RULE: Final = (
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
)
"""Azure reads elements in the order of its contract, and passes over what comes too late."""
SUBSCRIPTION_CODEC: Final = DescriptionCodec(
    "SubscriptionDescription",
    SubscriptionDescription,
    QueueRuntime,
    {
        "LockDuration": SettingElement("lock_duration_ms", kinds.DURATION),
        "RequiresSession": SettingElement("requires_session", kinds.BOOLEAN),
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", kinds.DURATION),
        "DeadLetteringOnMessageExpiration": SettingElement("dead_lettering_on_expiration", kinds.BOOLEAN),
        "DeadLetteringOnFilterEvaluationExceptions": SettingElement("dead_lettering_on_filter_errors", kinds.BOOLEAN),
        "MessageCount": MessageCountElement(),
        "MaxDeliveryCount": SettingElement("max_delivery_count", kinds.NUMBER),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", kinds.BOOLEAN),
        "Status": SettingElement("status", kinds.STATUS),
        "ForwardTo": SettingElement("forward_to", kinds.ENTITY_PATH),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        parts.COUNT_DETAILS: parts.MESSAGE_COUNTS,
        "ForwardDeadLetteredMessagesTo": SettingElement("forward_dead_lettered_to", kinds.ENTITY_PATH),
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", kinds.DURATION),
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "UserMetadata": SettingElement("user_metadata", kinds.TEXT),
    },
)


def read_default_rule(root: Element) -> RuleDescription | None:
    """The rule that a new subscription is to have in place of one that is true for every message."""
    element = envelope.children_by_name(root).get(DEFAULT_RULE_TAG)
    return rule.read(element) if element is not None else None


def add_default_rule(root: Element, description: RuleDescription) -> None:
    """Put such a rule into the description of a subscription that is to be made."""
    place = sum(child.tag in _BEFORE_DEFAULT_RULE for child in root)
    root.insert(place, rule.write_request(description, DEFAULT_RULE_TAG))
