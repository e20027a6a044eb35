"""The keys of a namespace on disk: `keys.json` in the data directory, and the changes that `twinbus key` makes to it.

    rules = read_rules(file)                                             # StartError if the file cannot be trusted
    rules = apply_command(rules, KeyCommand("rotate", "sender"), now)    # KeyChangeRefused says why
    write_rules(file, rules)

Owns: the format of the file, and which changes are allowed. A rule has a primary secret, and also a secondary secret
while clients move from the old secret to the new. This module generates secrets; secrets never appear in a repr, a log
or an error. `keys` defines the rights of a key; `key_socket` tells a running server about a change.

The file is `{"rules": [...]}`. A file with a single rule, `{"name": ..., "primary": ...}`, is read as well: earlier
versions wrote such files, and operators may write such a file by hand.
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
"""Text that needs no escaping in a connection string."""


class KeyChangeRefused(Exception):
    """A change to the keys was refused. The message says why, and what to do."""


class KeyRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A key: its name, secrets and rights."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,256}$")]
    primary: _Secret
    secondary: _Secret | None = None
    rights: Annotated[tuple[RightName, ...], msgspec.Meta(min_length=1)] = ("Manage", "Send", "Listen")
    changed: str | None = None
    """The time of the last change to the secrets: ISO 8601, in UTC. None if unknown."""

    def __repr__(self) -> str:
        return f"KeyRule(name={self.name!r}, rights={self.rights})"

    @property
    def has_manage(self) -> bool:
        """Whether the key has the `Manage` right, which includes all other rights."""
        return MANAGE_RIGHT in self.rights


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `keys.json`."""

    rules: list[KeyRule]


class KeyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `twinbus key` command: list the keys, or change one of them."""

    do: Literal["list", "add", "rotate", "revoke"]
    name: str = ""
    rights: tuple[str, ...] = ()
    """The rights of the key to add."""
    secondary: bool = False
    """Whether to rotate or revoke only the secondary secret."""
    force: bool = False
    """Whether to revoke the key even if it is the last key with Manage."""
    show: bool = False
    """Whether the reply includes secrets."""
    entity: str = ""
    """The queue or topic whose keys the command lists or changes; "" means the namespace."""


# --- the file ---------------------------------------------------------------------------------------------------------


def read_rules(file: Path) -> tuple[KeyRule, ...]:
    """Return the rules in the file. Raise StartError if the file cannot be read or trusted."""
    check_own_file(file, is_private=True)
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as stream:
            content = stream.read(MAX_FILE_BYTES)
    except OSError as error:
        raise StartError(f"{file} holds the keys and cannot be read: {error.strerror}") from error
    try:
        document = msgspec.json.decode(content)
        if isinstance(document, dict) and "rules" in document:
            rules = tuple(msgspec.convert(document, _KeyFile).rules)
        else:
            rules = (msgspec.convert(document, KeyRule),)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error names the field and the expected type. It does not contain the value, which may be a secret.
        raise StartError(
            f"{file} is not a key file ({error}): restore it from a copy, or remove it and start the server for a new "
            'key; by hand, write {"name": "...", "primary": "..."}'
        ) from None
    names = [rule.name for rule in rules]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise StartError(f"{file} is not a key file (two keys are named {duplicate!r}): remove one of them")
    return rules


def write_rules(file: Path, rules: Sequence[KeyRule]) -> None:
    """Replace the file's content with these rules and fsync the file. Raise StartError if the write fails."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(_KeyFile(list(rules))), indent=2) + b"\n")


def new_rule(name: str, rights: tuple[RightName, ...], now: dt.datetime) -> KeyRule:
    """Return a rule with a new random secret."""
    return KeyRule(name, new_secret(), None, rights, _iso_time(now))


# --- changes ----------------------------------------------------------------------------------------------------------


def apply_command(rules: Sequence[KeyRule], command: KeyCommand, now: dt.datetime) -> tuple[KeyRule, ...]:
    """Return the rules after a change. Raise KeyChangeRefused if the change is not allowed."""
    if command.do == "list":
        return tuple(rules)
    if command.do == "add":
        return (*rules, _new_key(rules, command, now))
    rule = find_rule(rules, command.name)
    if command.do == "rotate":
        after = _rotate(rule, now, secondary=command.secondary)
        return tuple(after if other is rule else other for other in rules)
    if command.secondary:
        if rule.secondary is None:
            raise KeyChangeRefused(f"key {rule.name!r} has no secondary secret: there is nothing to revoke")
        after = replace(rule, secondary=None, changed=_iso_time(now))
        return tuple(after if other is rule else other for other in rules)
    remaining = tuple(other for other in rules if other is not rule)
    if rule.has_manage and not any(other.has_manage for other in remaining) and not command.force:
        raise KeyChangeRefused(
            f"key {rule.name!r} is the last one with Manage, and without it nobody can manage the namespace: add "
            "another one first, or use --force"
        )
    return remaining


def find_rule(rules: Sequence[KeyRule], name: str) -> KeyRule:
    """Return the rule with this name. Raise KeyChangeRefused, which lists the existing names, if there is none."""
    match = next((rule for rule in rules if rule.name == name), None)
    if match is None:
        names = ", ".join(rule.name for rule in rules) or "none"
        raise KeyChangeRefused(f"there is no key {name!r:.80}; the keys are: {names}")
    return match


def _new_key(rules: Sequence[KeyRule], command: KeyCommand, now: dt.datetime) -> KeyRule:
    rights = RIGHTS if MANAGE_RIGHT in command.rights else tuple(right for right in RIGHTS if right in command.rights)
    unknown = [right for right in command.rights if right not in RIGHTS]
    if unknown or not rights:
        invalid = ", ".join(map(repr, unknown)) or "none"
        raise KeyChangeRefused(f"a key has one or more of the rights Manage, Send and Listen, not {invalid:.80}")
    try:
        AuthorizationRule.new(command.name, rights)
    except InvalidArgument as error:
        raise KeyChangeRefused(str(error)) from None
    if any(rule.name.lower() == command.name.lower() for rule in rules):
        raise KeyChangeRefused(f"key {command.name!r} exists already: rotate it, or choose another name")
    if len(rules) >= MAX_AUTHORIZATION_RULES:
        raise KeyChangeRefused(f"there are {len(rules)} keys (limit: {MAX_AUTHORIZATION_RULES}): revoke one first")
    return new_rule(command.name, msgspec.convert(rights, tuple[RightName, ...]), now)


def _rotate(rule: KeyRule, now: dt.datetime, *, secondary: bool) -> KeyRule:
    if secondary:
        return replace(rule, secondary=new_secret(), changed=_iso_time(now))
    return replace(rule, primary=new_secret(), secondary=rule.primary, changed=_iso_time(now))


def _iso_time(now: dt.datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")
