"""The keys of a namespace and of its queues and topics, indexed by name, by entity and by secret.

Owns: the lookup of keys by name, and the index of the authorization rules of all entities. Every process that serves
the namespace calls `refresh` whenever an entity is added, updated or removed, to update the index. The keys of the
namespace are replaced all at once. If a change removes a secret or a right, `on_key_reduced` is called. Knows nothing
of tokens (`sas`), links or requests.

A failed login costs the same whatever the client presented: one comparison with a namespace key (or a decoy), and one
lookup by a keyed digest of name and secret. The cost depends neither on the number of entities nor on which key names
exist.
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
    """The part of an entity's interface that this module uses."""

    @property
    def description(self) -> object:
        """The entity's description; queues and topics have `authorization_rules` in it."""


class KeyRegistry:
    """The keys of a namespace and of its entities."""

    def __init__(self, keys: KeyRing, entities: Mapping[str, HasDescription]) -> None:
        """Index the keys of all `entities`, a live mapping from canonical paths to the entities of the namespace."""
        self.on_key_reduced: Callable[[Key], None] = ignore
        """The callback for a key that was removed, or lost a secret or a right; its argument is the previous key."""
        self._namespace_keys = keys
        self._entities = entities
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._by_entity: dict[str, dict[str, Key]] = {}
        """The keys of each entity, by name."""
        self._by_name: dict[str, set[str]] = {}
        """The entities that have a key with a given name."""
        self._by_secret: dict[bytes, dict[str, Key]] = {}
        """Keys by entity, stored under the digest of the key's name and one of its secrets."""
        for owner in entities:
            self.refresh(owner)

    def replace_keys(self, keys: KeyRing) -> None:
        """Replace the keys of the namespace."""
        before, self._namespace_keys = self._namespace_keys, keys
        for key in before.all_keys:
            if _is_reduced(key, keys.find(key.name)):
                self.on_key_reduced(key)

    def refresh(self, entity_key: str) -> None:
        """Read the rules of an entity again, after the entity was added, updated or removed."""
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
        """Return the keys with this name that can be valid for `scope`: from the namespace and the scope's entity."""
        entity_key = self._by_entity.get(path.parent_entity(scope), {}).get(name)
        return [*self._namespace_keys.find_named(name, scope), *([entity_key] if entity_key is not None else [])]

    def has_key_named(self, name: str) -> bool:
        """Return whether the namespace or any of its entities has a key with this name."""
        return self._namespace_keys.find(name) is not None or name in self._by_name

    def check_password(self, name: str, secret: str) -> list[Grant]:
        """Return the grants for a client that presents the name and secret of a key; an empty list if no key matches.

        The client does not say which entity the key belongs to, and several entities may have a key with this name and
        secret.
        """
        rights = self._namespace_keys.check_password(name, secret)
        namespace_key = self._namespace_keys.find(name)
        namespace_wide = [namespace_key] if namespace_key is not None and rights is not None else []
        # The digest is keyed with a secret of this process, so the lookup time reveals nothing about secrets.
        entity_keys = self._by_secret.get(self._digest(name, secret), {})
        return [Grant(key, secret, key.owner, inf) for key in [*namespace_wide, *entity_keys.values()]]

    def renew(self, grant: Grant) -> Grant | None:
        """Return a grant with the current state of its key; None if the secret of the grant is no longer valid."""
        name, owner = grant.key.name, grant.key.owner
        key = self._by_entity.get(owner, {}).get(name) if owner else self._namespace_keys.find(name)
        if key is grant.key or key == grant.key:
            return grant
        # No constant-time comparison is needed, because the client's secret was verified when the grant was made.
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
    """Return whether a client that could use `before` can no longer do so, or has fewer rights."""
    return after is None or not set(before.secrets) <= set(after.secrets) or not before.rights <= after.rights


def _key_of_rule(rule: AuthorizationRule, entity_key: str) -> Key:
    return Key(rule.name, rule.primary_key, rule.secondary_key, frozenset(map(Right, rule.rights)), entity_key)
