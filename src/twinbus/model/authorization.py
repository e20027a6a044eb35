"""Authorization rules: keys of one entity, and what they allow on it and below it.

Owns: what is a valid rule, and how a secret is made. Who is let in with one is for `server.authority` to say. A new
secret has at least `MIN_SECRET_CHARACTERS`; shorter ones of earlier versions stay valid until they are changed.
"""

from __future__ import annotations

import base64
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Self

from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

RIGHTS: Final = ("Manage", "Send", "Listen")
MAX_AUTHORIZATION_RULES: Final = 12
"""Of one entity, as in Service Bus."""
MIN_SECRET_CHARACTERS: Final = 16
"""Of base64: 96 bits, which nobody guesses. Service Bus makes its own with 44."""
_KEY_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_KEY: Final = re.compile(r"[A-Za-z0-9+/=_.-]{1,256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A name, two secrets that are good for it, and what they allow."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    @classmethod
    def new(cls, name: str, rights: tuple[str, ...]) -> Self:
        """One with new secrets."""
        return cls(name=name, rights=rights, primary_key=new_secret(), secondary_key=new_secret())

    def __post_init__(self) -> None:
        """Refuse what no rule can be. No error shows a key."""
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(f"{self.name!r:.80} is no name of a key: it has letters, digits, '.', '-' and '_'")
        unknown = [right for right in self.rights if right not in RIGHTS]
        if unknown or not self.rights:
            raise InvalidArgument(f"the rights of key {self.name!r} are {self.rights!r:.80}; they can be {RIGHTS}")
        if "Manage" in self.rights and len(set(self.rights)) < len(RIGHTS):
            raise InvalidArgument(f"key {self.name!r} has Manage, which goes with Send and Listen: name all three")
        for key in (self.primary_key, self.secondary_key):
            if not _KEY.fullmatch(key):
                raise InvalidArgument(f"a secret of key {self.name!r} is not 1 to 256 characters of base64")

    @property
    def is_weak(self) -> bool:
        """A secret is shorter than a new one can be."""
        return any(len(secret) < MIN_SECRET_CHARACTERS for secret in (self.primary_key, self.secondary_key))


def check_new_secret(key_name: str, secret: str) -> None:
    """InvalidArgument where a secret that somebody has chosen is too short. The error does not show the secret."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise InvalidArgument(
            f"a secret of key {key_name!r:.80} has {len(secret)} characters; it has to have {MIN_SECRET_CHARACTERS} to "
            "256 characters of base64"
        )


def new_secret() -> str:
    """A text that nobody can guess."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """All rules of one entity."""
    if len(rules) > MAX_AUTHORIZATION_RULES:
        raise ArgumentOutOfRange(f"{len(rules)} authorization rules; an entity can have {MAX_AUTHORIZATION_RULES}")
    names = [rule.name.lower() for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"two authorization rules are named {twice!r}")
