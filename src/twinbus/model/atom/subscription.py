"""The description of a subscription, to and from XML.

Owns: the names and the order of its elements, and the rule that may come with them. How they are read and written is in
`form` and `parts`, rules are in `rule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.atom import envelope, kinds, parts, rule
from twinbus.model.atom.form import Form
from twinbus.model.atom.parts import Setting, Total
from twinbus.model.queue import QueueRuntime
from twinbus.model.topic import SubscriptionDescription

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import RuleDescription

DEFAULT_RULE: Final = "DefaultRuleDescription"
_BEFORE_IT: Final = (
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
)
"""Azure reads elements in the order of its contract, and passes over what comes too late."""
SUBSCRIPTION: Final = Form(
    "SubscriptionDescription",
    SubscriptionDescription,
    QueueRuntime,
    {
        "LockDuration": Setting("lock_duration_ms", kinds.DURATION),
        "RequiresSession": Setting("requires_session", kinds.BOOLEAN),
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", kinds.DURATION),
        "DeadLetteringOnMessageExpiration": Setting("dead_lettering_on_expiration", kinds.BOOLEAN),
        "DeadLetteringOnFilterEvaluationExceptions": Setting("dead_lettering_on_filter_errors", kinds.BOOLEAN),
        "MessageCount": Total(),
        "MaxDeliveryCount": Setting("max_delivery_count", kinds.NUMBER),
        "EnableBatchedOperations": Setting("enable_batched_operations", kinds.BOOLEAN),
        "Status": Setting("status", kinds.STATUS),
        "ForwardTo": Setting("forward_to", kinds.ENTITY),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        parts.COUNT_DETAILS: parts.MESSAGE_COUNTS,
        "ForwardDeadLetteredMessagesTo": Setting("forward_dead_lettered_to", kinds.ENTITY),
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", kinds.DURATION),
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "UserMetadata": Setting("user_metadata", kinds.TEXT),
    },
)


def read_default_rule(root: Element) -> RuleDescription | None:
    """The rule that a new subscription is to have in place of one that is true for every message."""
    element = envelope.children(root).get(DEFAULT_RULE)
    return rule.read(element) if element is not None else None


def add_default_rule(root: Element, wanted: RuleDescription) -> None:
    """Put such a rule into the description of a subscription that is to be made."""
    place = sum(child.tag in _BEFORE_IT for child in root)
    root.insert(place, rule.write_wanted(wanted, DEFAULT_RULE))
