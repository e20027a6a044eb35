"""All keys that are good for something in a namespace: its own, and those of its queues and topics.

Owns: which keys a name means for whoever asks about an entity, and that a key which its owner has changed or deleted is
good for nothing any more. Keeps no copy: rules of entities are looked up in their descriptions each time. Knows nothing
of tokens (`sas`), links or requests.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from twinbus.model import path
from twinbus.model.authorization import new_secret
from twinbus.server.keys import Key, Right
from twinbus.server.sas import Grant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.authorization import AuthorizationRule
    from twinbus.server.keys import KeyRing


class Described(Protocol):
    """An entity, as far as it is of interest here."""

    @property
    def description(self) -> object:
        """With `authorization_rules`, if its kind can have any."""


class Authority:
    """Who may do what in a namespace."""

    def __init__(self, keys: KeyRing, entities: Mapping[str, Described]) -> None:
        """`entities` are those of the namespace now, by the keys of their paths."""
        self._keys = keys
        self._entities = entities
        self._decoy = Key("", new_secret())

    def named(self, name: str, scope: str) -> list[Key]:
        """The keys of that name that can be good for `scope`: the namespace's, and that of the entity it is in."""
        return [*self._keys.named(name, scope), *_keys_named(name, self._owner(path.owner_of(scope)))]

    def knows(self, name: str) -> bool:
        """Some key has that name."""
        return self._keys.find(name) is not None or bool(_keys_named(name, self._entities))

    def check_password(self, name: str, secret: str) -> list[Grant]:
        """What is granted to who shows a key itself: nothing, if it is none. A key of an entity says not which."""
        rights = self._keys.check_password(name, secret)
        own = self._keys.find(name)
        # Also where there is no such key something is compared: the time would tell which names there are.
        others = _keys_named(name, self._entities) or [self._decoy]
        shown = [key for key in others if key.is_shown_by(secret) and key is not self._decoy]
        namespace_wide = [own] if own is not None and rights is not None else []
        return [Grant(key, secret, key.owner, inf) for key in [*namespace_wide, *shown]]

    def renewed(self, grant: Grant) -> Grant | None:
        """A grant as it is worth now: an entity's owner may have changed the key, or deleted it."""
        if not grant.key.owner:
            return grant
        keys = _keys_named(grant.key.name, self._owner(grant.key.owner))
        return next((replace(grant, key=key) for key in keys if key.is_shown_by(grant.secret)), None)

    def _owner(self, owner: str) -> Mapping[str, Described]:
        """The entity of that path alone, if there is one."""
        return {owner: self._entities[owner]} if owner in self._entities else {}


def _keys_named(name: str, entities: Mapping[str, Described]) -> list[Key]:
    """All keys of that name that these entities have: one look at each, as strangers can ask for all of them."""
    return [
        _key(rule, owner)
        for owner, entity in entities.items()
        for rule in getattr(entity.description, "authorization_rules", ())
        if rule.name == name
    ]


def _key(rule: AuthorizationRule, owner: str) -> Key:
    return Key(rule.name, rule.primary_key, rule.secondary_key, frozenset(map(Right, rule.rights)), owner)
