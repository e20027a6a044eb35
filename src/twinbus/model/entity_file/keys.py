"""Readers for keys and their secrets in a TOML file.

Owns the places of a secret: the file itself if only its owner may read it, another file, or an environment variable. No
error contains a secret.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from twinbus.model.authorization import RIGHTS, AuthorizationRule, check_new_secret
from twinbus.model.entity_file.section import Section, choice, list_of, path, text
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from twinbus.model.entity_file.section import Location

PRIMARY_SECRET: Final = "secret"  # noqa: S105  # a key of the file, not a secret
SECONDARY_SECRET: Final = "secondary_secret"  # noqa: S105
SECRET_KEYS: Final = tuple(
    f"{name}{end}" for name in (PRIMARY_SECRET, SECONDARY_SECRET) for end in ("", "_file", "_env")
)
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_SECRET_BYTES: Final = 4_096


def read_secret(section: Section, name: str) -> str | None:
    """Return the secret from the key `name`, `name_file` or `name_env`, or None if none of them is set."""
    present = [key for key in (name, f"{name}_file", f"{name}_env") if section.has(key)]
    if len(present) > 1:
        raise section.location.child(present[1]).error(f"{present[0]} is set too: set only one of them")
    return (
        section.get(name, _read_inline_secret)
        or section.get(f"{name}_file", _read_secret_file)
        or section.get(f"{name}_env", _read_secret_variable)
    )


def _read_inline_secret(location: Location, value: object) -> str:
    mode = location.file.stat().st_mode
    if mode & _OTHERS_MODE:
        raise location.error(
            f"a secret is not allowed in a file that other users may read (mode {stat.S_IMODE(mode):04o}): chmod 600 "
            "it, or use secret_file or secret_env"
        )
    return _check_not_empty(location, text(location, value))


def _read_secret_file(location: Location, value: object) -> str:
    file = path(location, value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_SECRET_BYTES)
    except OSError as error:
        raise location.error(f"{file} cannot be read: {error.strerror}") from None
    return _check_not_empty(location, content.decode("utf-8", "replace").strip())


def _read_secret_variable(location: Location, value: object) -> str:
    name = text(location, value)
    if name not in os.environ:
        raise location.error(f"there is no environment variable {name!r:.60}")
    return _check_not_empty(location, os.environ[name].strip())


def _check_not_empty(location: Location, secret: str) -> str:
    if not secret:
        raise location.error("the secret is empty")
    return secret


def read_authorization_rule(location: Location, value: object) -> AuthorizationRule:
    """Read a key with its rights and secrets."""
    section = Section(location, value, ("name", "rights", *SECRET_KEYS))
    name = section.require("name", text)
    rights = section.require("rights", list_of(choice(*RIGHTS)))
    primary = read_secret(section, PRIMARY_SECRET)
    if primary is None:
        raise location.child(PRIMARY_SECRET).error("is missing: set secret, secret_file or secret_env")
    secondary = read_secret(section, SECONDARY_SECRET) or primary
    try:
        rule = AuthorizationRule(name=name, rights=tuple(rights), primary_key=primary, secondary_key=secondary)
        for secret in (primary, secondary):
            check_new_secret(name, secret)
        return rule  # noqa: TRY300  # only after all checks
    except InvalidArgument as error:
        raise location.error(str(error)) from None
