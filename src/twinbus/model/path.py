"""Paths of entities: how clients write them, and what they mean.

An address on a link may be a URI, start with a slash, be percent-encoded, and end in a sub-queue or `$management`.
Paths compare without regard to case; an entity keeps the spelling it was created with.
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
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9_])?")


class SubQueue(Enum):
    """Which of an entity's queues a path means; the value is how the path ends."""

    MAIN = ""
    DEAD_LETTER = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"


@dataclass(frozen=True, slots=True)
class Address:
    """What an address on a link means."""

    entity: str
    """Path of the entity, as it was spelled."""
    sub_queue: SubQueue = SubQueue.MAIN
    is_management: bool = False

    @property
    def path(self) -> str:
        """Entity and sub-queue."""
        return self.entity + self.sub_queue.value

    def __str__(self) -> str:
        return self.path + (_MANAGEMENT if self.is_management else "")


def canonical_key(path: str) -> str:
    """What two spellings of the same path have in common."""
    return path.lower()


def relative_path(address: str) -> str:
    """An address without scheme and host, leading slash and percent-encoding."""
    return unquote(_URI.sub("", address, count=1)).strip("/")


def subscription_path(topic: str, name: str) -> str:
    """The path of a subscription."""
    return f"{topic}{SUBSCRIPTIONS}{name}"


def split_subscription(path: str) -> tuple[str, str]:
    """The topic's path and the subscription's name; the name is empty for the path of another entity."""
    at = path.lower().rfind(SUBSCRIPTIONS.lower())
    return (path, "") if at < 0 else (path[:at], path[at + len(SUBSCRIPTIONS) :])


def parent_entity(path: str) -> str:
    """The queue or topic that a path is of: sub-queues, subscriptions, rules and `$management` are below one."""
    path = path.split("/$", 1)[0]
    at = f"{path}/".lower().find(SUBSCRIPTIONS.lower())
    return path if at < 0 else path[:at]


def parse_address(address: str) -> Address:
    """Read what a client wrote as the address of a link."""
    path = relative_path(address)
    is_management = path.lower().endswith(_MANAGEMENT)
    if is_management:
        path = path[: -len(_MANAGEMENT)]
    for sub_queue in (SubQueue.TRANSFER_DEAD_LETTER, SubQueue.DEAD_LETTER):
        if path.lower().endswith(sub_queue.value.lower()):
            return Address(path[: -len(sub_queue.value)], sub_queue, is_management)
    return Address(path, SubQueue.MAIN, is_management)


def check_subscription_name(name: str) -> str:
    """The name of a new subscription; InvalidArgument says what is wrong with it."""
    if len(name) > SUBSCRIPTION_NAME_MAX_CHARACTERS or not _NAME.fullmatch(name) or "/" in name:
        raise InvalidArgument(
            f"{name!r:.80} is no name of a subscription: it has at most {SUBSCRIPTION_NAME_MAX_CHARACTERS} letters, "
            "digits, '.', '-' and '_', and starts and ends with a letter or digit"
        )
    return name


def check_entity_path(path: str) -> str:
    """The path of a new entity; InvalidArgument says what is wrong with it."""
    if len(path) > ENTITY_PATH_MAX_CHARACTERS:
        raise InvalidArgument(f"a path of {len(path)} characters; it can have {ENTITY_PATH_MAX_CHARACTERS}")
    if not _NAME.fullmatch(path) or "//" in path:
        raise InvalidArgument(
            f"{path!r:.80} is no path: it has letters, digits, '.', '-', '_' and '/', and starts and ends with a letter"
            " or digit"
        )
    if SUBSCRIPTIONS.lower() in f"/{path.lower()}/":
        raise InvalidArgument(f"{path!r:.80} is no path of a queue or topic: {SUBSCRIPTIONS!r} is in it")
    return path
