"""System properties, which expressions read as `sys.Name`.

Owns the table of their names, their locations in a message, and whether an action may set them. The names are those
used by the message classes in both generations of .NET clients.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from twinbus.amqp.codec.field_numbers import (
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
    """Part of a message that stores a system property."""

    FIELD = "a field of the properties"
    ID = "a field that is an id, of any type"
    ANNOTATION = "a message annotation"
    HEAD = "the head of the record, written by the broker"


class SystemProperty(NamedTuple):
    """Names, location and constraints of one system property."""

    names: tuple[str, ...]
    """Accepted names, case-insensitive; the first name appears in error texts."""
    location: PropertyLocation
    field: int = 0
    """Field number in the properties section, for FIELD and ID."""
    annotation: str = ""
    is_settable: bool = False
    is_id_sized: bool = False
    """Whether the property's length is limited by `max_id_characters`."""


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
    name.lower(): number for number, entry in enumerate(SYSTEM_PROPERTIES) for name in entry.names
}
"""Indexes into SYSTEM_PROPERTIES, by name in lower case."""


def property_number(name: str) -> int:
    """Return the index of an existing system property; case does not matter."""
    return PROPERTY_NUMBERS[name.lower()]


def property_names(*, settable_only: bool = False) -> str:
    """Return the names of system properties (all, or only those that an action may set) as a list for error texts."""
    return ", ".join(entry.names[0] for entry in SYSTEM_PROPERTIES if entry.is_settable or not settable_only)
