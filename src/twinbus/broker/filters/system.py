"""The system properties: what `sys.` gives, where it lies in a message, and which of them an action may set.

Owns: the table. The names are those of the messages of the .NET clients, of which there were two generations.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from twinbus.amqp.fields import (
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


class Place(Enum):
    """Where a system property lies."""

    FIELD = "a field of the properties"
    ID = "a field that is an id, of any type"
    ANNOTATION = "a message annotation"
    HEAD = "what the broker wrote in front"


class SystemProperty(NamedTuple):
    """One of them."""

    names: tuple[str, ...]
    """The first is the one it is known by; case does not matter."""
    place: Place
    field: int = 0
    """Its number in the properties, where it lies there."""
    annotation: str = ""
    is_settable: bool = False
    is_short: bool = False
    """No longer than an id may be."""


SYSTEM: Final = (
    SystemProperty(("MessageId",), Place.ID, MESSAGE_ID, is_settable=True, is_short=True),
    SystemProperty(("To",), Place.FIELD, TO, is_settable=True),
    SystemProperty(("Label", "Subject"), Place.FIELD, SUBJECT, is_settable=True),
    SystemProperty(("ReplyTo",), Place.FIELD, REPLY_TO, is_settable=True),
    SystemProperty(("CorrelationId",), Place.ID, CORRELATION_ID, is_settable=True),
    SystemProperty(("ContentType",), Place.FIELD, CONTENT_TYPE, is_settable=True),
    SystemProperty(("SessionId",), Place.FIELD, GROUP_ID, is_settable=True, is_short=True),
    SystemProperty(("ReplyToSessionId",), Place.FIELD, REPLY_TO_GROUP_ID, is_settable=True, is_short=True),
    SystemProperty(
        ("ScheduledEnqueueTimeUtc", "ScheduledEnqueueTime"),
        Place.ANNOTATION,
        annotation=SCHEDULED_TIME,
        is_settable=True,
    ),
    SystemProperty(("PartitionKey",), Place.ANNOTATION, annotation=PARTITION_KEY, is_settable=True, is_short=True),
    SystemProperty(
        ("ViaPartitionKey", "TransactionPartitionKey"),
        Place.ANNOTATION,
        annotation=VIA_PARTITION_KEY,
        is_settable=True,
        is_short=True,
    ),
    SystemProperty(("DeadLetterSource",), Place.ANNOTATION, annotation=DEADLETTER_SOURCE),
    SystemProperty(("EnqueuedSequenceNumber",), Place.ANNOTATION, annotation=ENQUEUED_SEQUENCE_NUMBER),
    SystemProperty(("TimeToLive",), Place.HEAD, is_settable=True),
    SystemProperty(("ExpiresAtUtc", "ExpiresAt"), Place.HEAD),
    SystemProperty(("EnqueuedTimeUtc", "EnqueuedTime"), Place.HEAD),
    SystemProperty(("SequenceNumber",), Place.HEAD),
    SystemProperty(("DeliveryCount",), Place.HEAD),
    SystemProperty(("Size",), Place.HEAD),
)
NUMBERS: Final = {name.lower(): number for number, found in enumerate(SYSTEM) for name in found.names}
"""Which line of the table a name means."""


def number_of(name: str) -> int:
    """The same, for a name that is there."""
    return NUMBERS[name.lower()]


def known_names(*, settable_only: bool = False) -> str:
    """All of them, for who asked for another."""
    return ", ".join(found.names[0] for found in SYSTEM if found.is_settable or not settable_only)
