"""The description of a subscription, to and from XML.

Owns: the names and the order of its elements, and the rule that may come with them. How they are read and written is in
`description_xml`, rules are in `rule_xml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.topic import SubscriptionDescription
from twinbus.server.http import atom, rule_xml
from twinbus.server.http import description_xml as xml
from twinbus.server.http.description_xml import Counts, Form, Setting

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import RuleDescription

SUBSCRIPTION: Final = Form(
    "SubscriptionDescription",
    SubscriptionDescription,
    {
        "LockDuration": Setting("lock_duration_ms", xml.DURATION),
        "RequiresSession": Setting("requires_session", xml.BOOLEAN),
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", xml.DURATION),
        "DeadLetteringOnMessageExpiration": Setting("dead_lettering_on_expiration", xml.BOOLEAN),
        "DeadLetteringOnFilterEvaluationExceptions": Setting("dead_lettering_on_filter_errors", xml.BOOLEAN),
        "MessageCount": xml.MESSAGE_COUNT,
        "MaxDeliveryCount": Setting("max_delivery_count", xml.NUMBER),
        "EnableBatchedOperations": Setting("enable_batched_operations", xml.BOOLEAN),
        "Status": Setting("status", xml.STATUS),
        "ForwardTo": Setting("forward_to", xml.ENTITY),
        "CreatedAt": xml.CREATED_AT,
        "UpdatedAt": xml.UPDATED_AT,
        "AccessedAt": xml.ACCESSED_AT,
        "CountDetails": Counts(xml.message_counts),
        "ForwardDeadLetteredMessagesTo": Setting("forward_dead_lettered_to", xml.ENTITY),
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", xml.DURATION),
        "EntityAvailabilityStatus": xml.AVAILABILITY,
        "UserMetadata": Setting("user_metadata", xml.TEXT),
    },
)


def read_default_rule(root: Element) -> RuleDescription | None:
    """The rule that a new subscription is to have in place of one that is true for every message."""
    element = atom.children(root).get("DefaultRuleDescription")
    return rule_xml.read(element) if element is not None else None
