"""The system properties: what `sys.` gives, where it lies in a message, and which of them an action may set.

Owns: the table. The names are those of the messages of the .NET clients, of which there were two generations.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from twinbus.amqp.field_numbers import (
    CONTENT_TYPE,
    CORRELATION_ID,
    GROUP_ID,
    MESSAGE_ID,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SUBJECT,
    TO,
)
from twinbus.model.annotations import (
    DEADLETTER_SOURCE,
    ENQUEUED_SEQUENCE_NUMBER,
    PARTITION_KEY,
    SCHEDULED_TIME,
    VIA_PARTITION_KEY,
)


class PropertyLocation(Enum):
    """Where a system property lies."""

    FIELD = "a field of the properties"
    ID = "a field that is an id, of any type"
    ANNOTATION = "a message annotation"
    HEAD = "what the broker wrote in front"


class SystemProperty(NamedTuple):
    """One of them."""

    names: tuple[str, ...]
    """The first is the one it is known by; case does not matter."""
    location: PropertyLocation
    field: int = 0
    """Its number in the properties, where it lies there."""
    annotation: str = ""
    is_settable: bool = False
    is_id_sized: bool = False
    """No longer than an id may be."""


SYSTEM_PROPERTIES: Final = (
    SystemProperty(("MessageId",), PropertyLocation.ID, MESSAGE_ID, is_settable=True, is_id_sized=True),
    SystemProperty(("To",), PropertyLocation.FIELD, TO, is_settable=True),
    SystemProperty(("Label", "Subject"), PropertyLocation.FIELD, SUBJECT, is_settable=True),
    SystemProperty(("ReplyTo",), PropertyLocation.FIELD, REPLY_TO, is_settable=True),
    SystemProperty(("CorrelationId",), PropertyLocation.ID, CORRELATION_ID, is_settable=True),
    SystemProperty(("ContentType",), PropertyLocation.FIELD, CONTENT_TYPE, is_settable=True),
    SystemProperty(("SessionId",), PropertyLocation.FIELD, GROUP_ID, is_settable=True, is_id_sized=True),
    SystemProperty(
        ("ReplyToSessionId",), PropertyLocation.FIELD, REPLY_TO_GROUP_ID, is_settable=True, is_id_sized=True
    ),
    SystemProperty(
        ("ScheduledEnqueueTimeUtc", "ScheduledEnqueueTime"),
        PropertyLocation.ANNOTATION,
        annotation=SCHEDULED_TIME,
        is_settable=True,
    ),
    SystemProperty(
        ("PartitionKey",), PropertyLocation.ANNOTATION, annotation=PARTITION_KEY, is_settable=True, is_id_sized=True
    ),
    SystemProperty(
        ("ViaPartitionKey", "TransactionPartitionKey"),
        PropertyLocation.ANNOTATION,
        annotation=VIA_PARTITION_KEY,
        is_settable=True,
        is_id_sized=True,
    ),
    SystemProperty(("DeadLetterSource",), PropertyLocation.ANNOTATION, annotation=DEADLETTER_SOURCE),
    SystemProperty(("EnqueuedSequenceNumber",), PropertyLocation.ANNOTATION, annotation=ENQUEUED_SEQUENCE_NUMBER),
    SystemProperty(("TimeToLive",), PropertyLocation.HEAD, is_settable=True),
    SystemProperty(("ExpiresAtUtc", "ExpiresAt"), PropertyLocation.HEAD),
    SystemProperty(("EnqueuedTimeUtc", "EnqueuedTime"), PropertyLocation.HEAD),
    SystemProperty(("SequenceNumber",), PropertyLocation.HEAD),
    SystemProperty(("DeliveryCount",), PropertyLocation.HEAD),
    SystemProperty(("Size",), PropertyLocation.HEAD),
)
PROPERTY_NUMBERS: Final = {
    name.lower(): number for number, found in enumerate(SYSTEM_PROPERTIES) for name in found.names
}
"""Which line of the table a name means."""


def property_number(name: str) -> int:
    """The same, for a name that is there."""
    return PROPERTY_NUMBERS[name.lower()]


def property_names(*, settable_only: bool = False) -> str:
    """All of them, for who asked for another."""
    return ", ".join(found.names[0] for found in SYSTEM_PROPERTIES if found.is_settable or not settable_only)
