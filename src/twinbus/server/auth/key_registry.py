"""The keys of a namespace and of its queues and topics, indexed by name, by entity and by secret.

Owns: which keys a name stands for, and the index of the authorization rules of all entities. `refresh` keeps the index
in step: it is called whenever an entity is added, updated or removed, in every process that serves the namespace. The
keys of the namespace are replaced all at once. If a change takes a secret or a right away, `on_reduced` is called.
Knows nothing of tokens (`sas`), links or requests.

A failed login costs the same whatever was shown: one comparison with a namespace key (or a decoy), and one look-up by
a keyed digest of name and secret. The cost depends neither on the number of entities nor on the names that exist.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model import path
from twinbus.model.callbacks import ignore
from twinbus.server.auth.keys import Key, Right
from twinbus.server.auth.sas import Grant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.authorization import AuthorizationRule
    from twinbus.server.auth.keys import KeyRing

_SALT_BYTES: Final = 32


class HasDescription(Protocol):
    """An entity, as far as it is of interest here."""

    @property
    def description(self) -> object:
        """With `authorization_rules`, if its kind can have any."""


class KeyRegistry:
    """Who may do what in a namespace."""

    def __init__(self, keys: KeyRing, entities: Mapping[str, HasDescription]) -> None:
        """`entities` are those of the namespace now, by the keys of their paths."""
        self.on_key_reduced: Callable[[Key], None] = ignore
        """Called with a former key when one of its secrets or rights is gone, or all of it."""
        self._namespace_keys = keys
        self._entities = entities
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._by_entity: dict[str, dict[str, Key]] = {}
        """The keys of each entity, by their names."""
        self._by_name: dict[str, set[str]] = {}
        """The entities that have a key of a name."""
        self._by_secret: dict[bytes, dict[str, Key]] = {}
        """By the digest of a name and a secret: the keys that this is good for, by their entities."""
        for owner in entities:
            self.refresh(owner)

    def replace_keys(self, keys: KeyRing) -> None:
        """Put other keys in the place of those of the namespace."""
        before, self._namespace_keys = self._namespace_keys, keys
        for key in before.all_keys:
            if _is_reduced(key, keys.find(key.name)):
                self.on_key_reduced(key)

    def refresh(self, entity_key: str) -> None:
        """An entity was added, described anew, or removed: read its rules again."""
        entity = self._entities.get(entity_key)
        rules: tuple[AuthorizationRule, ...] = getattr(entity.description, "authorization_rules", ()) if entity else ()
        before = self._by_entity.get(entity_key, {})
        if not rules and not before:
            return
        after = {rule.name: _key_of_rule(rule, entity_key) for rule in rules}
        if before == after:
            return
        for key in before.values():
            self._unindex(key)
        self._by_entity.pop(entity_key, None)
        if after:
            self._by_entity[entity_key] = after
        for key in after.values():
            self._index(key)
        for key in before.values():
            if _is_reduced(key, after.get(key.name)):
                self.on_key_reduced(key)

    def find_named(self, name: str, scope: str) -> list[Key]:
        """Return the keys of that name that can be good for `scope`: the namespace's, and that of its entity."""
        own = self._by_entity.get(path.parent_entity(scope), {}).get(name)
        return [*self._namespace_keys.find_named(name, scope), *([own] if own is not None else [])]

    def has_key_named(self, name: str) -> bool:
        """Return whether some key has that name."""
        return self._namespace_keys.find(name) is not None or name in self._by_name

    def check_password(self, name: str, secret: str) -> list[Grant]:
        """Return the grants of a client that shows a key itself; none, if it is wrong.

        The client does not say which entity the key is of: several may have the same.
        """
        rights = self._namespace_keys.check_password(name, secret)
        own = self._namespace_keys.find(name)
        namespace_wide = [own] if own is not None and rights is not None else []
        # The digest is keyed with a secret of this process: the time of the look-up says nothing about other secrets.
        shown = self._by_secret.get(self._digest(name, secret), {})
        return [Grant(key, secret, key.owner, inf) for key in [*namespace_wide, *shown.values()]]

    def renew(self, grant: Grant) -> Grant | None:
        """Return a grant with its key as it is now; None if the secret that was shown is not good any more."""
        name, owner = grant.key.name, grant.key.owner
        key = self._by_entity.get(owner, {}).get(name) if owner else self._namespace_keys.find(name)
        if key is grant.key or key == grant.key:
            return grant
        # Both sides of this comparison are the server's own: the secret was checked when it was shown.
        return replace(grant, key=key) if key is not None and grant.secret in key.secrets else None

    def _index(self, key: Key) -> None:
        self._by_name.setdefault(key.name, set()).add(key.owner)
        for secret in key.secrets:
            self._by_secret.setdefault(self._digest(key.name, secret), {})[key.owner] = key

    def _unindex(self, key: Key) -> None:
        owners = self._by_name[key.name]
        owners.discard(key.owner)
        if not owners:
            del self._by_name[key.name]
        for digest in {self._digest(key.name, secret) for secret in key.secrets}:
            del self._by_secret[digest][key.owner]
            if not self._by_secret[digest]:
                del self._by_secret[digest]

    def _digest(self, name: str, secret: str) -> bytes:
        text = f"{len(name)} {name} {secret}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._salt, text, "sha256")


def _is_reduced(before: Key, after: Key | None) -> bool:
    """Some client that could use `before` cannot do so any more, or can do less."""
    return after is None or not set(before.secrets) <= set(after.secrets) or not before.rights <= after.rights


def _key_of_rule(rule: AuthorizationRule, entity_key: str) -> Key:
    return Key(rule.name, rule.primary_key, rule.secondary_key, frozenset(map(Right, rule.rights)), entity_key)
