"""A message that an action is at work on: what was set is seen by the statements behind, and written once at the end.

Owns: the changes, and how a stored message is written with them; the bytes of all that did not change stay.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.decode import decode, open_list, open_map, skip
from twinbus.amqp.encode import encode
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
    """A stored message, and what is to be changed in it."""

    __slots__ = ("_changes", "_new_names", "_removed_keys")

    def __init__(self, record: bytes, sequence: int | None = None, view: MessageView | None = None) -> None:
        """As it is, at first; `view` has perhaps read some of it already."""
        super().__init__(record, sequence)
        if view is not None:
            self.copy_cache(view)
        self._changes: dict[PropertyKey, object] = {}
        """What is set, as AMQP has it, but for the time to live, which is in milliseconds."""
        self._removed_keys: set[bytes] = set()
        """Properties of the sender's that go."""
        self._new_names: dict[bytes, str] = {}
        """How those that are set are written, where the message does not have them yet."""

    def set(self, target: Property, value: object, amqp_value: object) -> None:
        """Set a property: `value` as expressions see it from now on, `stored` as it is written."""
        address = target.key
        self._values[address] = value
        self._changes[address] = amqp_value
        if isinstance(address, bytes):
            self._removed_keys.discard(address)
            self._new_names[address] = target.name

    def remove(self, target: Property) -> None:
        """Take one away: a property of the sender's; a system property is null then."""
        address = target.key
        self._values[address] = None
        if isinstance(address, bytes):
            self._changes.pop(address, None)
            self._removed_keys.add(address)
        else:
            self._changes[address] = None

    def exists(self, key: PropertyKey) -> bool:
        """As of any message, with the changes."""
        if isinstance(key, bytes) and (key in self._changes or key in self._removed_keys):
            return key in self._changes
        return super().exists(key)

    def amqp_value(self, key: bytes) -> object:
        """As of any message, with the changes."""
        if key in self._changes or key in self._removed_keys:
            return self._changes.get(key)
        return super().amqp_value(key)

    # --- writing ------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The stored message, with all changes."""
        parts = parse_record(self.record)
        fields: dict[int, object] = {}
        annotations: dict[str, object] = {}
        for number, value in self._changes.items():
            if isinstance(number, bytes):
                continue
            found = SYSTEM_PROPERTIES[number]
            if found.location is PropertyLocation.ANNOTATION:
                annotations[found.annotation] = value
            elif number == _TIME_TO_LIVE:
                parts = _with_time_to_live(parts, value)
            else:
                fields[found.field] = value
        if _SESSION_ID in self._changes and parts.session_id is not None:
            session = self._changes[_SESSION_ID]
            parts = parts._replace(session_id=session.encode() if isinstance(session, str) else None)
        if fields:
            parts = parts._replace(bare_message=_with_fields(parts.bare_message, fields))
        if annotations:
            parts = _without_annotations(parts, annotations)
        wanted = {name: value for name, value in annotations.items() if value is not None}
        return self._with_user_properties(parts, wanted)

    def _with_user_properties(self, parts: RecordFields, annotations: Mapping[str, object]) -> bytes:
        """The sender's properties: one that is there keeps the way its name is written."""
        parts = parts._replace(bare_message=self._encode_bare(parts.bare_message), shared_body=0)
        return change_record(make_record(parts), annotations=annotations) if annotations else make_record(parts)

    def _encode_bare(self, bare: bytes) -> bytes:
        """A bare message with the changes to the sender's properties: where these are all new, none is walked over."""
        message = Message(bare)
        names = dict(self._new_names)
        known, raw = self._find_user_properties(), message.raw(Section.APPLICATION_PROPERTIES)
        if any(address in known for address in (*names, *self._removed_keys)):
            count, content = self._unchanged_properties(message, names)
        elif raw:
            count, at = open_map(raw, skip(raw, 1))
            content = raw[at:]
        else:
            count, content = 0, b""
        added = [address for address in self._changes if isinstance(address, bytes)]
        content += b"".join([encode(names[address]) + encode(self._changes[address]) for address in added])
        count += 2 * len(added)
        section = _APPLICATION_PROPERTIES_HEAD.pack(b"\x00\x53\x74\xd1", len(content) + 4, count) + content
        body = message.body_section
        pieces = [message.raw(Section.PROPERTIES), section, message.raw(body) if body is not None else b""]
        return b"".join([*pieces, message.raw(Section.FOOTER)])

    def _unchanged_properties(self, message: Message, names: dict[bytes, str]) -> tuple[int, bytes]:
        """The sender's properties but for those that change; `names` gets how these are written."""
        kept: list[bytes] = []
        spelled: dict[bytes, str] = {}
        for key, raw in message.pairs(Section.APPLICATION_PROPERTIES):
            address = user_property_key(key) if isinstance(key, str) else b""
            if isinstance(key, str) and (address in self._changes or address in self._removed_keys):
                spelled.setdefault(address, str(key))
            else:
                kept.append(raw)
        names.update(spelled)
        return 2 * len(kept), b"".join(kept)


def _with_time_to_live(parts: RecordFields, ttl_ms: object) -> RecordFields:
    flags, priority, _ = parts.header
    if isinstance(ttl_ms, int) and ttl_ms < FOREVER_MS:
        envelope = MessageHeader(flags | HAS_TTL, priority, ttl_ms)
    else:
        envelope = MessageHeader(flags & ~HAS_TTL, priority)
    if parts.state == ACTIVE_STATE:
        parts = parts._replace(due_ms=expiry_time(envelope, parts.enqueued_ms))
    return parts._replace(header=envelope)


def _with_fields(bare: bytes, changes: Mapping[int, object]) -> bytes:
    """A bare message with some fields of its properties set."""
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
