"""The keys of a namespace: who may do what.

Owns: `keys.json`, which holds the root key alone, and the comparison of keys without telling by its time how much was
right. A key's text is never in a repr, a log or an error. What a signature made with a key proves is in `sas`; keys of
single entities are added to these in `authority`.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from twinbus.model.authorization import MIN_SECRET_CHARACTERS, new_secret
from twinbus.server.data_directory import check_own_file, write_atomically
from twinbus.server.settings import Misuse, StartError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"
EMULATOR_SECRET: Final = "SAS_KEY_VALUE"  # noqa: S105  # known to everybody, and so good for loopback only
_FILE_MAX_BYTES: Final = 65_536

logger = logging.getLogger(__name__)


class Right(Enum):
    """What a key allows."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Key:
    """A name, one or two secrets that are good for it, and what they allow."""

    name: str
    primary: str = field(repr=False)
    secondary: str | None = field(default=None, repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    owner: str = ""
    """The queue or topic that it is a key of, in lower case; "" is the namespace."""

    def __post_init__(self) -> None:
        """Who may manage may also send and listen."""
        if Right.MANAGE in self.rights:
            object.__setattr__(self, "rights", ALL_RIGHTS)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Each text that is good for this key."""
        return (self.primary,) if self.secondary is None else (self.primary, self.secondary)

    def is_shown_by(self, secret: str) -> bool:
        """One of its secrets was given. Takes the same time for every text."""
        given = _digest(secret)
        matches = hmac.compare_digest(given, _digest(self.primary))
        return matches | hmac.compare_digest(given, _digest(self.secondary or self.primary))


_Secret = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9+/=_.-]{1,256}$")]
"""What stands in a connection string as it is."""


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """keys.json."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,256}$")]
    primary: _Secret
    secondary: _Secret | None = None


class KeyRing:
    """All keys of a namespace."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.name: key for key in keys}
        self._decoy = Key("", new_secret())

    @classmethod
    def load(cls, file: Path) -> KeyRing:
        """The root key in `file`, which is made if it is missing; StartError if it cannot be trusted."""
        if not file.exists() and not file.is_symlink():
            write_atomically(file, msgspec.json.encode(_KeyFile(ROOT_KEY_NAME, new_secret())) + b"\n")
            logger.info("made a new root key", extra={"file": str(file)})
        stored = _read(file)
        if min(len(secret) for secret in (stored.primary, stored.secondary or stored.primary)) < MIN_SECRET_CHARACTERS:
            logger.warning(
                "the root key has a secret of fewer than %d characters, which can be guessed: write another one to %s, "
                "or remove the file for a new key to be made",
                MIN_SECRET_CHARACTERS,
                file,
            )
        return cls([Key(stored.name, stored.primary, stored.secondary)])

    def with_keys(self, keys: Iterable[Key]) -> KeyRing:
        """These as well."""
        ring = list(self._keys.values())
        for key in keys:
            if key.name in self._keys:
                raise Misuse(f"{key.name!r} is the root key, in the data directory: give the other key another name")
            ring.append(key)
        return KeyRing(ring)

    def with_emulator_key(self) -> KeyRing:
        """Also the key that Microsoft's emulator has, under the name that it has there."""
        first, *others = self._keys.values()
        if first.name != ROOT_KEY_NAME:
            return self.with_keys([Key(ROOT_KEY_NAME, EMULATOR_SECRET)])
        if first.secondary is not None:
            raise Misuse("--emulator-key: the root key has two secrets already; take the secondary out of keys.json")
        return KeyRing([replace(first, secondary=EMULATOR_SECRET), *others])

    @property
    def all(self) -> tuple[Key, ...]:
        """Each of them, the root key first."""
        return tuple(self._keys.values())

    @property
    def root(self) -> Key:
        """The key that may do everything, for connection strings."""
        return next(iter(self._keys.values()))

    def find(self, name: str) -> Key | None:
        """The key of that name."""
        return self._keys.get(name)

    def named(self, name: str, scope: str) -> list[Key]:  # noqa: ARG002  # each is good for all of the namespace
        """The keys of that name that can be good for `scope`."""
        return [self._keys[name]] if name in self._keys else []

    def check_password(self, name: str, secret: str) -> frozenset[Right] | None:
        """The rights of who says so, or None. Takes the same time whether the name or the secret is wrong."""
        known = self._keys.get(name)
        matches = (known or self._decoy).is_shown_by(secret)
        return known.rights if matches and known else None


def _digest(secret: str) -> bytes:
    """Of the same length for every secret: the time of a comparison tells the length of what is compared."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _read(path: Path) -> _KeyFile:
    check_own_file(path, is_private=True)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            content = file.read(_FILE_MAX_BYTES)
    except OSError as error:
        raise StartError(f"{path} holds the root key and cannot be read: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=_KeyFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error says where and what was expected; it does not repeat what it found.
        raise StartError(
            f"{path} is not a key file ({error}): remove it for a new key to be made, or write "
            '{"name": "...", "primary": "..."}'
        ) from None
