"""The keys of a namespace: who may do what.

Owns: which keys there are, and the comparison of keys without telling by its time how much was right. Keys come from
`keys.json` in the data directory (`key_file`), from the configuration file, and from the emulator. A key's text is
never in a repr, a log or an error. What a signature made with a key proves is in `sas`; keys of single entities are
added to these in `authority`.
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
EMULATOR_SECRET: Final = "SAS_KEY_VALUE"  # noqa: S105  # known to everybody, and so good for loopback only

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
    emulator_secret: str | None = field(default=None, repr=False)
    """A third secret, which everybody knows: the emulator's."""

    def __post_init__(self) -> None:
        """Who may manage may also send and listen."""
        if Right.MANAGE in self.rights:
            object.__setattr__(self, "rights", ALL_RIGHTS)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Each text that is good for this key."""
        return tuple(one for one in (self.primary, self.secondary, self.emulator_secret) if one is not None)

    def matches_secret(self, secret: str) -> bool:
        """One of its secrets was given. Takes the same time for every text."""
        given = _digest(secret)
        matches = hmac.compare_digest(given, _digest(self.primary))
        matches |= hmac.compare_digest(given, _digest(self.secondary or self.primary))
        if self.emulator_secret is not None:  # everybody knows which key that is
            matches |= hmac.compare_digest(given, _digest(self.emulator_secret))
        return matches


class KeyRing:
    """All keys of a namespace."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.name: key for key in keys}
        self._decoy = Key("", new_secret())

    @classmethod
    def load(cls, file: Path, *, create_missing: bool = True) -> KeyRing:
        """Return the keys in `file`; StartError if it cannot be trusted. A file that is missing is made if `makes`."""
        if create_missing and not file.exists() and not file.is_symlink():
            rule = key_file.new_rule(ROOT_KEY_NAME, ("Manage", "Send", "Listen"), dt.datetime.now(dt.UTC))
            key_file.write_rules(file, [rule])
            logger.info("made a new root key", extra={"file": str(file)})
        return cls.from_rules(key_file.read_rules(file), file)

    @classmethod
    def from_rules(cls, rules: Iterable[KeyRule], file: Path) -> KeyRing:
        """Return the keys of these rules, and warn of secrets in `file` that can be guessed."""
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
        """Return a ring that has these as well. Misuse if a name is taken."""
        ring = list(self._keys.values())
        for key in keys:
            if key.name in self._keys:
                raise ConfigurationError(
                    f"{key.name!r} is the name of a key in the data directory already: give the one in the "
                    "configuration file another name"
                )
            ring.append(key)
        return KeyRing(ring)

    def with_emulator_key(self) -> KeyRing:
        """Return a ring that also has the key of Microsoft's emulator, under the name that it has there."""
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
        """Each of them, those of the data directory first."""
        return tuple(self._keys.values())

    @property
    def root_key(self) -> Key | None:
        """The first key that may do everything, for connection strings; None if there is none."""
        return next((key for key in self._keys.values() if Right.MANAGE in key.rights), None)

    def find(self, name: str) -> Key | None:
        """The key of that name."""
        return self._keys.get(name)

    def find_named(self, name: str, scope: str) -> list[Key]:  # noqa: ARG002  # each is good for all of the namespace
        """The keys of that name that can be good for `scope`."""
        return [self._keys[name]] if name in self._keys else []

    def check_password(self, name: str, secret: str) -> frozenset[Right] | None:
        """The rights of who says so, or None. Takes the same time whether the name or the secret is wrong."""
        known = self._keys.get(name)
        matches = (known or self._decoy).matches_secret(secret)
        return known.rights if matches and known else None


def _digest(secret: str) -> bytes:
    """Of the same length for every secret: the time of a comparison tells the length of what is compared."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
