"""The keys of a namespace on disk: `keys.json` in the data directory, and the changes that `twinbus key` makes to it.

    rules = read(file)                                  # StartError if the file cannot be trusted
    rules = change(rules, Order("rotate", "sender"), now)   # KeyRefused says why not
    write(file, rules)

Owns: the format of the file, and which change is allowed. A rule has one secret, and a second one while clients move
from one to the other. Secrets are made here and are never in a repr, a log or an error. What a key is good for is in
`keys`; how a running server learns of a change is in `key_socket`.

The file is `{"rules": [...]}`. One that holds a single rule, `{"name": ..., "primary": ...}`, is read as well: earlier
versions wrote that, and people may.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from twinbus.model.authorization import MAX_AUTHORIZATION_RULES, RIGHTS, AuthorizationRule, new_secret
from twinbus.model.errors import InvalidArgument
from twinbus.server.config.settings import StartError
from twinbus.server.runtime.data_directory import check_own_file, write_atomically

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

MAX_FILE_BYTES: Final = 65_536
MANAGE_RIGHT: Final = "Manage"

RightName: TypeAlias = Literal["Manage", "Send", "Listen"]
_Secret = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9+/=_.-]{1,256}$")]
"""Text that stands in a connection string as it is."""


class KeyChangeRefused(Exception):
    """A change of the keys that cannot be made. The message says why, and what to do."""


class KeyRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One key: a name, its secrets and its rights."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,256}$")]
    primary: _Secret
    secondary: _Secret | None = None
    rights: Annotated[tuple[RightName, ...], msgspec.Meta(min_length=1)] = ("Manage", "Send", "Listen")
    changed: str | None = None
    """When its secrets were last changed: ISO 8601, in UTC. None: unknown."""

    def __repr__(self) -> str:
        return f"KeyRule(name={self.name!r}, rights={self.rights})"

    @property
    def has_manage(self) -> bool:
        """Whether it may do everything."""
        return MANAGE_RIGHT in self.rights


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """keys.json."""

    rules: list[KeyRule]


class KeyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for: to list the keys, or to change one of them."""

    do: Literal["list", "add", "rotate", "revoke"]
    name: str = ""
    rights: tuple[str, ...] = ()
    """Of a new key."""
    secondary: bool = False
    """Rotate or revoke the secondary secret alone."""
    force: bool = False
    """Revoke the last key that may manage, too."""
    show: bool = False
    """Answer with secrets."""
    entity: str = ""
    """The queue or topic whose keys these are; "" is the namespace."""


# --- the file ---------------------------------------------------------------------------------------------------------


def read_rules(file: Path) -> tuple[KeyRule, ...]:
    """Return the rules in the file; StartError if it cannot be read or trusted."""
    check_own_file(file, is_private=True)
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as opened:
            content = opened.read(MAX_FILE_BYTES)
    except OSError as error:
        raise StartError(f"{file} holds the keys and cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(content)
        if isinstance(found, dict) and "rules" in found:
            rules = tuple(msgspec.convert(found, _KeyFile).rules)
        else:
            rules = (msgspec.convert(found, KeyRule),)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error says where and what was expected; it does not repeat what it found.
        raise StartError(
            f"{file} is not a key file ({error}): restore it from a copy, or remove it and start the server for a new "
            'key; by hand, write {"name": "...", "primary": "..."}'
        ) from None
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StartError(f"{file} is not a key file (two keys are named {twice!r}): remove one of them")
    return rules


def write_rules(file: Path, rules: Sequence[KeyRule]) -> None:
    """Put these rules in the place of all others, on disk when this returns. StartError if that fails."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(_KeyFile(list(rules))), indent=2) + b"\n")


def new_rule(name: str, rights: tuple[RightName, ...], now: dt.datetime) -> KeyRule:
    """Return a rule with a new secret."""
    return KeyRule(name, new_secret(), None, rights, _iso_time(now))


# --- changes ----------------------------------------------------------------------------------------------------------


def apply_command(rules: Sequence[KeyRule], command: KeyCommand, now: dt.datetime) -> tuple[KeyRule, ...]:
    """Return the rules after a change. KeyRefused."""
    if command.do == "list":
        return tuple(rules)
    if command.do == "add":
        return (*rules, _new_key(rules, command, now))
    rule = find_rule(rules, command.name)
    if command.do == "rotate":
        after = _rotate(rule, now, secondary=command.secondary)
        return tuple(after if one is rule else one for one in rules)
    if command.secondary:
        if rule.secondary is None:
            raise KeyChangeRefused(f"key {rule.name!r} has no secondary secret: there is nothing to revoke")
        after = replace(rule, secondary=None, changed=_iso_time(now))
        return tuple(after if one is rule else one for one in rules)
    left = tuple(one for one in rules if one is not rule)
    if rule.has_manage and not any(one.has_manage for one in left) and not command.force:
        raise KeyChangeRefused(
            f"key {rule.name!r} is the last one with Manage, and without it nobody can manage the namespace: add "
            "another one first, or give --force"
        )
    return left


def find_rule(rules: Sequence[KeyRule], name: str) -> KeyRule:
    """Return the rule of that name; KeyRefused names those that there are."""
    found = next((rule for rule in rules if rule.name == name), None)
    if found is None:
        known = ", ".join(rule.name for rule in rules) or "none"
        raise KeyChangeRefused(f"there is no key {name!r:.80}; the keys are: {known}")
    return found


def _new_key(rules: Sequence[KeyRule], command: KeyCommand, now: dt.datetime) -> KeyRule:
    rights = RIGHTS if MANAGE_RIGHT in command.rights else tuple(right for right in RIGHTS if right in command.rights)
    unknown = [right for right in command.rights if right not in RIGHTS]
    if unknown or not rights:
        given = ", ".join(map(repr, unknown)) or "none"
        raise KeyChangeRefused(f"the rights of a key are Manage, Send and Listen, one or more of them, not {given:.80}")
    try:
        AuthorizationRule.new(command.name, rights)
    except InvalidArgument as error:
        raise KeyChangeRefused(str(error)) from None
    if any(rule.name.lower() == command.name.lower() for rule in rules):
        raise KeyChangeRefused(f"there is a key {command.name!r} already: rotate it, or choose another name")
    if len(rules) >= MAX_AUTHORIZATION_RULES:
        raise KeyChangeRefused(
            f"there are {len(rules)} keys, and there can be {MAX_AUTHORIZATION_RULES}: revoke one first"
        )
    return new_rule(command.name, msgspec.convert(rights, tuple[RightName, ...]), now)


def _rotate(rule: KeyRule, now: dt.datetime, *, secondary: bool) -> KeyRule:
    if secondary:
        return replace(rule, secondary=new_secret(), changed=_iso_time(now))
    return replace(rule, primary=new_secret(), secondary=rule.primary, changed=_iso_time(now))


def _iso_time(now: dt.datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")
