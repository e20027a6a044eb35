"""What comes in: from the bytes a client sent to records that can be stored, or to the reason why not.

Owns: the checks on one message, and the unpacking of batches. Of a message only the header, the annotations and the ids
are read; the body never is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section
from twinbus.amqp.outline import outline_of
from twinbus.broker.record import Envelope, make_envelope, make_plain_record, make_record
from twinbus.model.errors import ArgumentOutOfRange, MalformedMessage, MessageTooLarge, NotImplementedHere

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.model.limits import NamespaceLimits

BATCH_FORMAT: Final = 0x80013700
"""The message format of a batch: each data section of the body is a whole message."""
SET_BY_BROKER: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
    }
)
"""Annotations of ours: who sends on a message it received sends them along, and they mean nothing then."""
_HEADER_DEFAULT: Final = Envelope()
_MESSAGE_ID: Final = 0
_GROUP_ID: Final = 10
_NAMES_OF_IDS: Final = {_MESSAGE_ID: "message-id", _GROUP_ID: "session id (group-id)"}


class Intake:
    """Makes records of what clients send."""

    def __init__(self, limits: NamespaceLimits, make_id: Callable[[], str]) -> None:
        """`make_id` gives an id to a message that has none."""
        self._limits = limits
        self._make_id = make_id

    def add_to(self, records: list[bytes], payload: bytes, message_format: int, enqueued_ms: int) -> None:
        """Add one record, or those of a batch; the first message that is wrong is the reason why none is."""
        try:
            if message_format == BATCH_FORMAT:
                records += self._unpack(payload, enqueued_ms)
            else:
                records.append(self._record(payload, enqueued_ms))
        except DecodeError as error:
            raise MalformedMessage(f"the message is malformed: {error.description}") from None

    def _unpack(self, payload: bytes, enqueued_ms: int) -> list[bytes]:
        batch = Message(payload)
        messages = batch.data
        if not messages:
            raise MalformedMessage("a batch without a single message: each data section of its body has to be one")
        if len(messages) > self._limits.max_batch_messages:
            most = self._limits.max_batch_messages
            raise MessageTooLarge(f"a batch of {len(messages)} messages; it can have {most}")
        return [self._record(message, enqueued_ms) for message in messages]

    def _record(self, payload: bytes, enqueued_ms: int) -> bytes:
        outline = outline_of(payload)
        if outline is None:
            return self._unusual_record(payload, enqueued_ms)
        header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = outline
        if (
            properties_end < body_at  # it has application properties, which must be readable if they are to be changed
            or body_at - properties_at + annotations_end - annotations_at > self._limits.max_property_bytes
            or properties_end - properties_at > self._limits.max_id_characters  # a smaller section holds no longer id
            or annotations_end - annotations_at > self._limits.max_id_characters
        ):
            self._check(Message(payload))
        envelope = _read_header(payload[:header_end]) if header_end else _HEADER_DEFAULT
        if annotations_end:
            return self._annotated_record(Message(payload), envelope, payload[properties_at:], enqueued_ms)
        return make_plain_record(envelope, payload[properties_at:], enqueued_ms)

    def _unusual_record(self, payload: bytes, enqueued_ms: int) -> bytes:
        message = Message(payload)
        self._check(message)
        envelope = _read_header(message.raw(Section.HEADER)) if Section.HEADER in message else _HEADER_DEFAULT
        has_id = message.has_field(Section.PROPERTIES, _MESSAGE_ID)
        bare = message.bare() if has_id else self._with_message_id(message)
        return self._annotated_record(message, envelope, bare, enqueued_ms)

    @staticmethod
    def _annotated_record(message: Message, envelope: Envelope, bare: bytes, enqueued_ms: int) -> bytes:
        due_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-scheduled-enqueue-time")
        if isinstance(due_ms, int) and due_ms > enqueued_ms:
            raise NotImplementedHere("messages cannot be scheduled in this version")
        kept = [raw for key, raw in message.pairs(Section.MESSAGE_ANNOTATIONS) if key not in SET_BY_BROKER]
        return make_record(envelope, bare, enqueued_ms, annotations=b"".join(kept), annotation_count=2 * len(kept))

    def _check(self, message: Message) -> None:
        limits = self._limits
        properties = message.size_of(Section.PROPERTIES)
        size = properties + message.size_of(Section.APPLICATION_PROPERTIES)
        size += message.size_of(Section.MESSAGE_ANNOTATIONS)
        if size > limits.max_properties_bytes:
            raise MessageTooLarge(
                f"the message has {size} bytes of properties and annotations; it can have {limits.max_properties_bytes}"
            )
        self._check_each_property(message)
        if max(properties, message.size_of(Section.MESSAGE_ANNOTATIONS)) > limits.max_id_characters:
            self._check_ids(message)

    def _check_each_property(self, message: Message) -> None:
        limit = self._limits.max_property_bytes
        for section in (Section.APPLICATION_PROPERTIES, Section.MESSAGE_ANNOTATIONS):
            for key, raw in message.pairs(section):  # raises where it is no map
                if not isinstance(key, str) and (section is Section.APPLICATION_PROPERTIES or not isinstance(key, int)):
                    raise MalformedMessage(f"{key!r:.60} names a property or annotation: that can be done by text only")
                if len(raw) > limit:
                    raise MessageTooLarge(f"property {key!r:.60} takes {len(raw)} bytes; it can take {limit}")

    def _check_ids(self, message: Message) -> None:
        limit = self._limits.max_id_characters
        ids = {name: message.field(Section.PROPERTIES, index) for index, name in _NAMES_OF_IDS.items()}
        ids["partition key"] = message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-partition-key")
        for name, found in ids.items():
            if isinstance(found, str | bytes) and len(found) > limit:
                raise ArgumentOutOfRange(f"a {name} of {len(found)} characters; it can have {limit}")

    def _with_message_id(self, message: Message) -> bytes:
        """Some clients set none, and cannot live with none on what they receive."""
        properties = message.properties or Properties()
        properties.message_id = self._make_id()
        body = message.body_section
        pieces = [properties.encode(), message.raw(Section.APPLICATION_PROPERTIES)]
        pieces += [message.raw(body) if body is not None else b"", message.raw(Section.FOOTER)]
        return b"".join(pieces)


@lru_cache(maxsize=1024)
def _read_header(raw: bytes) -> Envelope:
    """Most messages of a sender have the same header: it is read once."""
    header = Message(raw).header
    if header is None:  # its descriptor says header, its content does not
        raise DecodeError("a header that is none")
    return make_envelope(durable=header.durable, priority=header.priority, ttl_ms=header.ttl)
