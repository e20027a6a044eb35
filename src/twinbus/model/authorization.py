"""Authorization rules: named keys of an entity, and their rights on the entity and everything below it.

Owns the validity of rules and the generation of secrets. `server.auth` grants access. A new secret has at least
`MIN_SECRET_CHARACTERS`; shorter secrets from earlier versions stay valid until they are changed.
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
"""Maximum number of rules per entity, as in Service Bus."""
MIN_SECRET_CHARACTERS: Final = 16
"""Minimum length of a new secret in base64 characters: 96 bits, infeasible to guess. Service Bus generates 44
characters."""
_KEY_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_KEY: Final = re.compile(r"[A-Za-z0-9+/=_.-]{1,256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """Named key with two secrets and its rights."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    @classmethod
    def new(cls, name: str, rights: tuple[str, ...]) -> Self:
        """Return a rule with new secrets."""
        return cls(name=name, rights=rights, primary_key=new_secret(), secondary_key=new_secret())

    def __post_init__(self) -> None:
        """Raise InvalidArgument if the rule is invalid. Errors never contain a secret."""
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(f"{self.name!r:.80} is not a valid key name: use letters, digits, '.', '-' and '_'")
        unknown = [right for right in self.rights if right not in RIGHTS]
        if unknown or not self.rights:
            raise InvalidArgument(f"the rights of key {self.name!r} are {self.rights!r:.80}; they can be {RIGHTS}")
        if "Manage" in self.rights and len(set(self.rights)) < len(RIGHTS):
            raise InvalidArgument(f"key {self.name!r} has Manage, which requires Send and Listen: list all three")
        for key in (self.primary_key, self.secondary_key):
            if not _KEY.fullmatch(key):
                raise InvalidArgument(f"a secret of key {self.name!r} is not 1 to 256 characters of base64")

    @property
    def is_weak(self) -> bool:
        """True if a secret is shorter than the minimum for new secrets."""
        return any(len(secret) < MIN_SECRET_CHARACTERS for secret in (self.primary_key, self.secondary_key))


def check_new_secret(key_name: str, secret: str) -> None:
    """Raise InvalidArgument if a user-supplied secret is too short. The error does not contain the secret."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise InvalidArgument(
            f"a secret of key {key_name!r:.80} has {len(secret)} characters; it has to have {MIN_SECRET_CHARACTERS} to "
            "256 characters of base64"
        )


def new_secret() -> str:
    """Return a random secret."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """Raise an error if an entity has too many rules or two rules of the same name."""
    if len(rules) > MAX_AUTHORIZATION_RULES:
        raise ArgumentOutOfRange(f"{len(rules)} authorization rules; an entity can have {MAX_AUTHORIZATION_RULES}")
    names = [rule.name.lower() for rule in rules]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InvalidArgument(f"two authorization rules are named {duplicate!r}")
