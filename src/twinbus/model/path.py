"""Paths of entities, and the addresses that clients use for them.

The address of a link may be a URI, start with a slash, be percent-encoded, and end in a sub-queue or `$management`.
Paths are case-insensitive; an entity keeps the spelling that it was created with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from twinbus.model.errors import InvalidArgument
from twinbus.model.limits import ENTITY_PATH_MAX_CHARACTERS, SUBSCRIPTION_NAME_MAX_CHARACTERS

CBS: Final = "$cbs"
_MANAGEMENT: Final = "/$management"
SUBSCRIPTIONS: Final = "/Subscriptions/"
_URI: Final = re.compile(r"\A[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
NAMESPACE_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
INVALID_NAMESPACE_NAME: Final = (
    "a namespace name has 1 to 50 letters, digits and hyphens, starts with a letter and does not end with a hyphen"
)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9_])?")


class SubQueue(Enum):
    """Sub-queue of an entity; the value is the suffix of its path."""

    MAIN = ""
    DEAD_LETTER = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed address of a link."""

    entity: str
    """Path of the entity, in the client's spelling."""
    sub_queue: SubQueue = SubQueue.MAIN
    is_management: bool = False

    @property
    def path(self) -> str:
        """Path of the entity including the sub-queue."""
        return self.entity + self.sub_queue.value

    def __str__(self) -> str:
        return self.path + (_MANAGEMENT if self.is_management else "")


def canonical_key(path: str) -> str:
    """Return the lowercase form, which is equal for all spellings of a path."""
    return path.lower()


def relative_path(address: str) -> str:
    """Return an address without scheme, host, leading slash and percent-encoding."""
    return unquote(_URI.sub("", address, count=1)).strip("/")


def subscription_path(topic: str, name: str) -> str:
    """Return the path of a subscription."""
    return f"{topic}{SUBSCRIPTIONS}{name}"


def split_subscription(path: str) -> tuple[str, str]:
    """Split a path into the topic's path and the subscription's name; the name is empty for other entities."""
    at = path.lower().rfind(SUBSCRIPTIONS.lower())
    return (path, "") if at < 0 else (path[:at], path[at + len(SUBSCRIPTIONS) :])


def parent_entity(path: str) -> str:
    """Return the queue or topic that a path belongs to, without sub-queue, subscription, rule or `$management`."""
    path = path.split("/$", 1)[0]
    at = f"{path}/".lower().find(SUBSCRIPTIONS.lower())
    return path if at < 0 else path[:at]


def parse_address(address: str) -> Address:
    """Parse the address of a link."""
    path = relative_path(address)
    is_management = path.lower().endswith(_MANAGEMENT)
    if is_management:
        path = path[: -len(_MANAGEMENT)]
    for sub_queue in (SubQueue.TRANSFER_DEAD_LETTER, SubQueue.DEAD_LETTER):
        if path.lower().endswith(sub_queue.value.lower()):
            return Address(path[: -len(sub_queue.value)], sub_queue, is_management)
    return Address(path, SubQueue.MAIN, is_management)


def check_subscription_name(name: str) -> str:
    """Return the name of a new subscription, or raise InvalidArgument if the name is invalid."""
    if len(name) > SUBSCRIPTION_NAME_MAX_CHARACTERS or not _NAME.fullmatch(name) or "/" in name:
        raise InvalidArgument(
            f"{name!r:.80} is not a valid subscription name: use at most {SUBSCRIPTION_NAME_MAX_CHARACTERS} letters, "
            "digits, '.', '-' and '_', starting and ending with a letter or digit"
        )
    return name


def check_entity_path(path: str) -> str:
    """Return the path of a new entity, or raise InvalidArgument if the path is invalid."""
    if len(path) > ENTITY_PATH_MAX_CHARACTERS:
        raise InvalidArgument(f"the path has {len(path)} characters; it can have {ENTITY_PATH_MAX_CHARACTERS}")
    if not _NAME.fullmatch(path) or "//" in path:
        raise InvalidArgument(
            f"{path!r:.80} is not a valid path: use letters, digits, '.', '-', '_' and '/', starting and ending with a"
            " letter or digit"
        )
    if SUBSCRIPTIONS.lower() in f"/{path.lower()}/":
        raise InvalidArgument(f"{path!r:.80} is not a valid path of a queue or topic: it contains {SUBSCRIPTIONS!r}")
    return path
