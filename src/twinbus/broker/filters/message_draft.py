"""A message that an action is changing. Later statements see the changes; the record is encoded once, at the end.

Owns the changes and the encoding of the changed record; the bytes of unchanged sections and properties are copied.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.decode import decode, open_list, open_map, skip
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.message import Message, Section
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.syntax_tree import Property, PropertyKey, user_property_key
from twinbus.broker.filters.system_properties import SYSTEM_PROPERTIES, PropertyLocation, property_number
from twinbus.broker.message_record import (
    ACTIVE_STATE,
    HAS_TTL,
    MessageHeader,
    RecordFields,
    change_record,
    expiry_time,
    make_record,
    parse_record,
)
from twinbus.model.description import FOREVER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SESSION_ID: Final = property_number("SessionId")
_TIME_TO_LIVE: Final = property_number("TimeToLive")
_NULL: Final = b"\x40"
_PROPERTIES_HEAD: Final = Struct(">4sII")
_APPLICATION_PROPERTIES_HEAD: Final = Struct(">4sII")


class MessageDraft(MessageView):
    """A stored message with pending changes to its properties."""

    __slots__ = ("_changes", "_new_names", "_removed_keys")

    def __init__(self, record: bytes, sequence: int | None = None, view: MessageView | None = None) -> None:
        """Create a draft without changes; `view` is an existing view of the same message, whose cache is copied."""
        super().__init__(record, sequence)
        if view is not None:
            self.copy_cache(view)
        self._changes: dict[PropertyKey, object] = {}
        """New values as AMQP types; the time to live is in milliseconds."""
        self._removed_keys: set[bytes] = set()
        """Keys of user properties to remove."""
        self._new_names: dict[bytes, str] = {}
        """Names of user properties that are set, as the action spells them; used if the message lacks the property."""

    def set(self, target: Property, value: object, amqp_value: object) -> None:
        """Set a property: later expressions see `value`, and `amqp_value` is encoded into the record."""
        key = target.key
        self._values[key] = value
        self._changes[key] = amqp_value
        if isinstance(key, bytes):
            self._removed_keys.discard(key)
            self._new_names[key] = target.name

    def remove(self, target: Property) -> None:
        """Remove a user property, or set a system property to null."""
        key = target.key
        self._values[key] = None
        if isinstance(key, bytes):
            self._changes.pop(key, None)
            self._removed_keys.add(key)
        else:
            self._changes[key] = None

    def exists(self, key: PropertyKey) -> bool:
        """Return whether the changed message has the property; a system property exists if it is not null."""
        if isinstance(key, bytes) and (key in self._changes or key in self._removed_keys):
            return key in self._changes
        return super().exists(key)

    def amqp_value(self, key: bytes) -> object:
        """Return a user property of the changed message as an AMQP value; raise DecodeError if it cannot be decoded."""
        if key in self._changes or key in self._removed_keys:
            return self._changes.get(key)
        return super().amqp_value(key)

    # --- writing ------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the record with all changes."""
        parts = parse_record(self.record)
        fields: dict[int, object] = {}
        annotations: dict[str, object] = {}
        for number, value in self._changes.items():
            if isinstance(number, bytes):
                continue
            system_property = SYSTEM_PROPERTIES[number]
            if system_property.location is PropertyLocation.ANNOTATION:
                annotations[system_property.annotation] = value
            elif number == _TIME_TO_LIVE:
                parts = _with_time_to_live(parts, value)
            else:
                fields[system_property.field] = value
        if _SESSION_ID in self._changes and parts.session_id is not None:
            session = self._changes[_SESSION_ID]
            parts = parts._replace(session_id=session.encode() if isinstance(session, str) else None)
        if fields:
            parts = parts._replace(bare_message=_with_fields(parts.bare_message, fields))
        if annotations:
            parts = _without_annotations(parts, annotations)
        new_annotations = {name: value for name, value in annotations.items() if value is not None}
        return self._with_user_properties(parts, new_annotations)

    def _with_user_properties(self, parts: RecordFields, annotations: Mapping[str, object]) -> bytes:
        """Return the record of `parts` with the changes to user properties and with these annotations added."""
        parts = parts._replace(bare_message=self._encode_bare(parts.bare_message), shared_body=0)
        return change_record(make_record(parts), annotations=annotations) if annotations else make_record(parts)

    def _encode_bare(self, bare: bytes) -> bytes:
        """Return a bare message with the changes to user properties.

        If all changed properties are new to the message, the existing section is copied without being parsed.
        """
        message = Message(bare)
        names = dict(self._new_names)
        existing, raw = self._find_user_properties(), message.raw(Section.APPLICATION_PROPERTIES)
        if any(key in existing for key in (*names, *self._removed_keys)):
            count, content = self._unchanged_properties(message, names)
        elif raw:
            count, at = open_map(raw, skip(raw, 1))
            content = raw[at:]
        else:
            count, content = 0, b""
        added = [key for key in self._changes if isinstance(key, bytes)]
        content += b"".join([encode(names[key]) + encode(self._changes[key]) for key in added])
        count += 2 * len(added)
        section = _APPLICATION_PROPERTIES_HEAD.pack(b"\x00\x53\x74\xd1", len(content) + 4, count) + content
        body = message.body_section
        pieces = [message.raw(Section.PROPERTIES), section, message.raw(body) if body is not None else b""]
        return b"".join([*pieces, message.raw(Section.FOOTER)])

    def _unchanged_properties(self, message: Message, names: dict[bytes, str]) -> tuple[int, bytes]:
        """Return the map count and the bytes of all unchanged user properties.

        For each changed property, put the message's spelling of the name into `names`.
        """
        kept: list[bytes] = []
        spellings: dict[bytes, str] = {}
        for name, raw in message.pairs(Section.APPLICATION_PROPERTIES):
            key = user_property_key(name) if isinstance(name, str) else b""
            if isinstance(name, str) and (key in self._changes or key in self._removed_keys):
                spellings.setdefault(key, str(name))
            else:
                kept.append(raw)
        names.update(spellings)
        return 2 * len(kept), b"".join(kept)


def _with_time_to_live(parts: RecordFields, ttl_ms: object) -> RecordFields:
    flags, priority, _ = parts.header
    if isinstance(ttl_ms, int) and ttl_ms < FOREVER_MS:
        header = MessageHeader(flags | HAS_TTL, priority, ttl_ms)
    else:
        header = MessageHeader(flags & ~HAS_TTL, priority)
    if parts.state == ACTIVE_STATE:
        parts = parts._replace(due_ms=expiry_time(header, parts.enqueued_ms))
    return parts._replace(header=header)


def _with_fields(bare: bytes, changes: Mapping[int, object]) -> bytes:
    """Return a bare message with the given fields of its properties section replaced."""
    message = Message(bare)
    raw = message.raw(Section.PROPERTIES)
    fields: list[bytes] = []
    if raw:
        count, at = open_list(raw, skip(raw, 1))
        for _ in range(count):
            end = skip(raw, at)
            fields.append(raw[at:end])
            at = end
    fields += [_NULL] * (max(changes) + 1 - len(fields))
    for index, value in changes.items():
        fields[index] = encode(value)
    content = b"".join(fields)
    section = _PROPERTIES_HEAD.pack(b"\x00\x53\x73\xd0", len(content) + 4, len(fields)) + content
    body = message.body_section
    pieces = [section, message.raw(Section.APPLICATION_PROPERTIES), message.raw(body) if body is not None else b""]
    return b"".join([*pieces, message.raw(Section.FOOTER)])


def _without_annotations(parts: RecordFields, names: Mapping[str, object]) -> RecordFields:
    source, at = parts.annotations, 0
    kept: list[bytes] = []
    for _ in range(parts.annotation_count // 2):
        name, value_at = decode(source, at)
        end = skip(source, value_at)
        if not isinstance(name, str) or name not in names:
            kept.append(source[at:end])
        at = end
    return parts._replace(annotations=b"".join(kept), annotation_count=2 * len(kept))
