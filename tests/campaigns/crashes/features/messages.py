"""Messages as sent with their terms and as received: the parts that the checker checks.

Owns: the annotations and properties that carry them on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.campaigns.clients import SEQUENCE_NUMBER
from tests.campaigns.crashes.features.queue_kinds import LOCK_S
from twinbus.amqp.message import Header, Message, Properties, build, data
from twinbus.amqp.types import Timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
LOCKED_UNTIL: Final = "x-opt-locked-until"
STATE: Final = "x-opt-message-state"
ORIGINAL_NUMBER: Final = "x-opt-enqueue-sequence-number"
DEAD_LETTER_REASON: Final = "DeadLetterReason"
ACTIVE, DEFERRED, SCHEDULED = range(3)


@dataclass(slots=True, kw_only=True)
class MessageTerms:
    """Session, time to live and schedule of a message."""

    session: str | None = None
    ttl_ms: int | None = None
    due_ms: int | None = None


def encode_message(message_id: str, body: bytes, terms: MessageTerms) -> bytes:
    """Return the payload of a message."""
    return build(
        header=Header(durable=True, ttl=terms.ttl_ms),
        message_annotations={SCHEDULED_TIME: Timestamp(terms.due_ms)} if terms.due_ms is not None else None,
        properties=Properties(message_id=message_id, group_id=terms.session),
        body=data(body),
    )


@dataclass(slots=True, kw_only=True)
class ReceivedMessage:
    """Message as a receiver gets it."""

    sequence_number: int
    body: bytes
    enqueued_ms: int = 0
    delivered_ms: int | None = None
    """When the broker delivered it; None if it was only peeked."""
    state: int = ACTIVE
    session: str | None = None
    ttl_ms: int | None = None
    original_number: int | None = None
    """Sequence number in its queue, if it is a dead letter."""
    reason: str | None = None

    @classmethod
    def read(cls, message: Message) -> ReceivedMessage:
        annotations, properties, header = message.message_annotations, message.properties, message.header
        assert isinstance(annotations, dict)
        assert properties is not None
        assert header is not None
        application_properties = message.application_properties
        assert isinstance(application_properties, dict)
        locked_until_ms = _integer_annotation(annotations, LOCKED_UNTIL)
        return cls(
            sequence_number=annotations[SEQUENCE_NUMBER],
            body=b"".join(message.data),
            enqueued_ms=annotations[ENQUEUED_TIME],
            delivered_ms=locked_until_ms - LOCK_S * 1000 if locked_until_ms is not None else None,
            state=_integer_annotation(annotations, STATE) or ACTIVE,
            session=properties.group_id,
            ttl_ms=header.ttl,
            original_number=_integer_annotation(annotations, ORIGINAL_NUMBER),
            reason=application_properties.get(DEAD_LETTER_REASON),
        )

    @property
    def expires_ms(self) -> int | None:
        return self.enqueued_ms + self.ttl_ms if self.ttl_ms is not None else None


def _integer_annotation(annotations: Mapping[object, object], name: str) -> int | None:
    annotation = annotations.get(name)
    return int(annotation) if isinstance(annotation, int) else None
