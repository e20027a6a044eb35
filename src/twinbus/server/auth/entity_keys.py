"""The keys of a queue or topic, changed by `twinbus key --entity` in the same way as the keys of the namespace.

    rules = await apply_command(administration, KeyCommand("rotate", "sender", entity="orders"), now)

Owns: the conversion between authorization rules and keys. A rule always has two secrets. If the secondary secret is
revoked, a new random secret that is never shown replaces it. `revocation` closes links that depend on an old secret.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from twinbus.model.authorization import AuthorizationRule, new_secret
from twinbus.model.errors import ServiceBusError
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.auth import key_file
from twinbus.server.auth.key_file import KeyChangeRefused, KeyRule, RightName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.info import Description
    from twinbus.server.auth.key_file import KeyCommand


class HasDescription(Protocol):
    """An entity with a description."""

    @property
    def description(self) -> Description:
        """The entity's description."""


class EntityManager(Protocol):
    """The methods of `Administration` that this module uses."""

    async def get(self, path: str, /) -> HasDescription:
        """Return the entity at `path`, or raise EntityNotFound."""

    async def update(self, path: str, description: Description, /) -> object:
        """Replace the description of an entity."""


async def apply_command(administration: EntityManager, command: KeyCommand, now: dt.datetime) -> tuple[KeyRule, ...]:
    """List an entity's keys or change one of them; return all keys of the entity afterwards.

    Raise KeyChangeRefused if the command cannot be executed.
    """
    try:
        description = (await administration.get(command.entity)).description
        if isinstance(description, SubscriptionDescription):
            raise KeyChangeRefused(
                f"'{command.entity}' is a subscription, which has no keys of its own: use those of its topic"
            )
        before = {rule.name: rule for rule in description.authorization_rules}
        # `force`, because an entity needs no key with Manage: the keys of the namespace can manage the entity.
        keys = key_file.apply_command(
            [_to_key_rule(rule) for rule in before.values()], msgspec.structs.replace(command, force=True), now
        )
        if command.do == "list":
            return keys
        rules = tuple(_to_authorization_rule(key, before, int(now.timestamp() * 1000)) for key in keys)
        await administration.update(command.entity, replace(description, authorization_rules=rules))
    except ServiceBusError as error:
        raise KeyChangeRefused(str(error)) from error
    return tuple(map(_to_key_rule, rules))


def _to_key_rule(rule: AuthorizationRule) -> KeyRule:
    changed = dt.datetime.fromtimestamp(rule.modified_ms / 1000, dt.UTC) if rule.modified_ms else None
    text = changed.isoformat(timespec="seconds").replace("+00:00", "Z") if changed else None
    rights = msgspec.convert(rule.rights, tuple[RightName, ...])
    return KeyRule(rule.name, rule.primary_key, rule.secondary_key, rights, text)


def _to_authorization_rule(key: KeyRule, before: Mapping[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
    old = before.get(key.name)
    if old is not None and (old.primary_key, old.secondary_key) == (key.primary, key.secondary):
        return old
    return AuthorizationRule(
        name=key.name,
        rights=key.rights,
        primary_key=key.primary,
        secondary_key=key.secondary or new_secret(),
        created_ms=old.created_ms if old is not None else now_ms,
        modified_ms=now_ms,
    )
