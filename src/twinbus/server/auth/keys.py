"""The keys of a namespace and their rights.

Owns: the set of keys, and constant-time comparison of secrets. Keys come from `keys.json` in the data directory
(`key_file`), from the configuration file, and from the emulator. The secret of a key never appears in a repr, a log or
an error. `sas` verifies signatures made with a key; `key_registry` adds the keys of entities.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import logging
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.authorization import MIN_SECRET_CHARACTERS, new_secret
from twinbus.server.auth import key_file
from twinbus.server.config.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from twinbus.server.auth.key_file import KeyRule

ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"
EMULATOR_SECRET: Final = "SAS_KEY_VALUE"  # noqa: S105  # publicly known, so accepted on loopback only

logger = logging.getLogger(__name__)


class Right(Enum):
    """A right that a key can have."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its name, its secrets and the rights they give."""

    name: str
    primary: str = field(repr=False)
    secondary: str | None = field(default=None, repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    owner: str = ""
    """The canonical path of the queue or topic that the key belongs to; "" for a key of the namespace."""
    emulator_secret: str | None = field(default=None, repr=False)
    """A third secret: the publicly known secret of Microsoft's emulator."""

    def __post_init__(self) -> None:
        """Add Send and Listen to a key with Manage."""
        if Right.MANAGE in self.rights:
            object.__setattr__(self, "rights", ALL_RIGHTS)

    @property
    def secrets(self) -> tuple[str, ...]:
        """All secrets of the key."""
        return tuple(secret for secret in (self.primary, self.secondary, self.emulator_secret) if secret is not None)

    def matches_secret(self, secret: str) -> bool:
        """Return whether `secret` is one of the key's secrets, in constant time."""
        digest = _digest(secret)
        matches = hmac.compare_digest(digest, _digest(self.primary))
        matches |= hmac.compare_digest(digest, _digest(self.secondary or self.primary))
        if self.emulator_secret is not None:  # the extra time reveals nothing, because the name of this key is public
            matches |= hmac.compare_digest(digest, _digest(self.emulator_secret))
        return matches


class KeyRing:
    """All keys of a namespace."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.name: key for key in keys}
        self._decoy = Key("", new_secret())

    @classmethod
    def load(cls, file: Path, *, create_missing: bool = True) -> KeyRing:
        """Return the keys in `file`.

        If `file` is missing and `create_missing` is True, create `file` with a new root key. Raise StartError if the
        file cannot be trusted.
        """
        if create_missing and not file.exists() and not file.is_symlink():
            rule = key_file.new_rule(ROOT_KEY_NAME, ("Manage", "Send", "Listen"), dt.datetime.now(dt.UTC))
            key_file.write_rules(file, [rule])
            logger.info("created a new root key", extra={"file": str(file)})
        return cls.from_rules(key_file.read_rules(file), file)

    @classmethod
    def from_rules(cls, rules: Iterable[KeyRule], file: Path) -> KeyRing:
        """Return the keys for these rules. Log a warning for each key in `file` with a short, guessable secret."""
        keys = [Key(rule.name, rule.primary, rule.secondary, frozenset(map(Right, rule.rights))) for rule in rules]
        for key in keys:
            if min(map(len, key.secrets)) < MIN_SECRET_CHARACTERS:
                logger.warning(
                    "the key %s has a secret of fewer than %d characters, which can be guessed: rotate it with twinbus "
                    "key rotate, and revoke its secondary",
                    key.name,
                    MIN_SECRET_CHARACTERS,
                    extra={"file": str(file)},
                )
        return cls(keys)

    def with_keys(self, keys: Iterable[Key]) -> KeyRing:
        """Return a ring with these additional keys. Raise ConfigurationError if a name is taken."""
        ring = list(self._keys.values())
        for key in keys:
            if key.name in self._keys:
                raise ConfigurationError(
                    f"the data directory has a key named {key.name!r} already: rename the key in the configuration file"
                )
            ring.append(key)
        return KeyRing(ring)

    def with_emulator_key(self) -> KeyRing:
        """Return a ring in which the root key also accepts the secret of Microsoft's emulator."""
        if ROOT_KEY_NAME not in self._keys:
            return self.with_keys([Key(ROOT_KEY_NAME, EMULATOR_SECRET)])
        return KeyRing(
            [
                replace(key, emulator_secret=EMULATOR_SECRET) if key.name == ROOT_KEY_NAME else key
                for key in self.all_keys
            ]
        )

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """All keys; keys from the data directory come first."""
        return tuple(self._keys.values())

    @property
    def root_key(self) -> Key | None:
        """The first key with the `Manage` right, for connection strings; None if there is none."""
        return next((key for key in self._keys.values() if Right.MANAGE in key.rights), None)

    def find(self, name: str) -> Key | None:
        """Return the key with this name, or None."""
        return self._keys.get(name)

    def find_named(self, name: str, scope: str) -> list[Key]:  # noqa: ARG002  # valid for any scope
        """Return the keys with this name that can be valid for `scope`."""
        return [self._keys[name]] if name in self._keys else []

    def check_password(self, name: str, secret: str) -> frozenset[Right] | None:
        """Return the rights of a client with this key name and secret; None if either is wrong.

        The duration of the check does not reveal whether the name or the secret is wrong.
        """
        key = self._keys.get(name)
        matches = (key or self._decoy).matches_secret(secret)
        return key.rights if matches and key else None


def _digest(secret: str) -> bytes:
    """Return a digest of fixed length, because the time to compare the secrets themselves would reveal their length."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
