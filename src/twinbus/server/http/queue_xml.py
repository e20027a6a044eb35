"""The description of a queue, to and from XML.

Owns: the names of the elements, their order, and how each value is written. What is a valid value is the model's to
say; an error names the element and the value that it was about.
Any order is read, and what is not known or not for clients to say is passed over: descriptions come back with counts
and dates in them, and from newer SDKs with elements nobody here has heard of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.model import path
from twinbus.model.description import STATUSES
from twinbus.model.errors import InvalidArgument, NotImplementedHere
from twinbus.model.queue import QueueDescription
from twinbus.server.http import atom, durations

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

    from twinbus.server.administration import QueueInfo

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidArgument("it has to be true or false")
    return _BOOLEANS[text.lower()]


def _read_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidArgument("it has to be a whole number")
    return int(text)


def _read_status(text: str) -> str:
    for status in STATUSES:
        if status.lower() == text.lower():
            return status
    raise InvalidArgument(f"it has to be {', '.join(STATUSES)}")


def _read_entity(text: str) -> str | None:
    # The SDKs send sb://host/name for a name, and show what comes back: inside, it is the name.
    return path.check_name(path.relative(text)) if text else None


def _read_text(text: str) -> str | None:
    return text or None


@dataclass(frozen=True, slots=True)
class _Kind:
    """How values of one kind are read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


_DURATION: Final = _Kind(durations.parse, durations.write)
_BOOLEAN: Final = _Kind(_read_boolean, lambda value: str(value).lower())
_NUMBER: Final = _Kind(_read_number)
_STATUS: Final = _Kind(_read_status)
_ENTITY: Final = _Kind(_read_entity)
_TEXT: Final = _Kind(_read_text)

_SETTINGS: Final = {
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxSizeInMegabytes": ("max_size_mb", _NUMBER),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOLEAN),
    "RequiresSession": ("requires_session", _BOOLEAN),
    "DefaultMessageTimeToLive": ("default_time_to_live_ms", _DURATION),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_expiration", _BOOLEAN),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _NUMBER),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOLEAN),
    "Status": ("status", _STATUS),
    "SupportOrdering": ("support_ordering", _BOOLEAN),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _DURATION),
    "EnablePartitioning": ("enable_partitioning", _BOOLEAN),
    "EnableExpress": ("enable_express", _BOOLEAN),
    "ForwardTo": ("forward_to", _ENTITY),
    "UserMetadata": ("user_metadata", _TEXT),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _ENTITY),
    "MaxMessageSizeInKilobytes": ("max_message_kb", _NUMBER),
}
_READINGS: Final[dict[str, Callable[[QueueInfo], str]]] = {
    "SizeInBytes": lambda info: str(info.runtime.size_bytes),
    "MessageCount": lambda info: str(sum(_counts(info).values()) + info.runtime.deferred_count),
    "IsAnonymousAccessible": lambda _: "false",
    "CreatedAt": lambda info: atom.timestamp(info.runtime.created_ms),
    "UpdatedAt": lambda info: atom.timestamp(info.runtime.updated_ms),
    "AccessedAt": lambda info: atom.timestamp(info.runtime.accessed_ms),
    "EntityAvailabilityStatus": lambda info: "Available" if info.runtime.is_available else "Limited",
}
_ORDER: Final = (
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "EnableExpress",
    "ForwardTo",
    "UserMetadata",
    "ForwardDeadLetteredMessagesTo",
    "MaxMessageSizeInKilobytes",
)
_FIXED_AT_CREATION: Final = ("requires_duplicate_detection", "requires_session", "enable_partitioning")


def read(body: bytes, current: QueueDescription | None = None) -> QueueDescription:
    """The description that a client sent; `current` is the queue's, when it is updated.

    What the client leaves out has its default, so that a ForwardTo can be taken away. Only what is fixed at creation
    stays as it is: a client of an api-version that does not know of partitions cannot repeat what it was not shown.
    """
    root = atom.read_content(body)
    if atom.local_name(root) != "QueueDescription":
        raise NotImplementedHere(f"the entry holds {root.tag!r:.120}; only a QueueDescription can be made here")
    values: dict[str, Any] = {name: getattr(current, name) for name in _FIXED_AT_CREATION} if current else {}
    for element in root:
        name = atom.local_name(element)
        if name in _SETTINGS and not atom.is_nil(element):
            field, _ = _SETTINGS[name]
            values[field] = _value(name, element.text or "")
        elif name == "AuthorizationRules" and len(element):
            raise NotImplementedHere("AuthorizationRules: keys of a single entity are not kept here; leave them out")
    return QueueDescription(**values)


def write(info: QueueInfo, *, host: str, shows_partitioning: bool) -> Element:
    """The description of a queue as it is now."""
    root = atom.description("QueueDescription")
    for name in _ORDER:
        if name == "CountDetails":
            _add_counts(root, info)
        elif name == "AuthorizationRules":
            atom.add(root, name)
        elif name in _READINGS:
            atom.add(root, name, _READINGS[name](info))
        elif name != "EnablePartitioning" or shows_partitioning:
            _add_setting(root, name, info.description, host)
    return root


def _value(name: str, text: str) -> Any:  # noqa: ANN401  # of the field's type
    """One value, held against the model alone, so that an error can say which element it was."""
    field, kind = _SETTINGS[name]
    try:
        value = kind.read(text if kind is _TEXT else text.strip())
        QueueDescription(**{field: value})
    except InvalidArgument as error:
        raise type(error)(f"{name} is {text!r:.80}: {error}") from None
    return value


def _add_setting(root: Element, name: str, description: QueueDescription, host: str) -> None:
    field, kind = _SETTINGS[name]
    value = getattr(description, field)
    if value is not None:
        atom.add(root, name, f"sb://{host}/{value}" if kind is _ENTITY else kind.write(value))


def _add_counts(root: Element, info: QueueInfo) -> None:
    # JavaScript finds the prefix of the children by taking the one attribute there is: a second would stop it.
    counts = atom.add(root, "CountDetails", **{"xmlns:d2p1": atom.COUNTS})
    for name, count in _counts(info).items():
        atom.add(counts, f"d2p1:{name}", str(count))


def _counts(info: QueueInfo) -> dict[str, int]:
    return {
        "ActiveMessageCount": info.runtime.active_count,
        "DeadLetterMessageCount": info.runtime.dead_letter_count,
        "ScheduledMessageCount": info.runtime.scheduled_count,
        "TransferMessageCount": info.runtime.transfer_count,
        "TransferDeadLetterMessageCount": info.runtime.transfer_dead_letter_count,
    }
