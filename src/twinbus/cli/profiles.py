"""Profiles: named connection strings in the user's configuration folder.

    default = "local"

    [profiles.local]
    connection_string = "Endpoint=sb://localhost:5672;..."
    ca_files = ["/etc/twinbus/ca.pem"]

Owns the file, its format and its permissions: the file has keys, so only its owner may read it. The commands are in
`profile`, the choice of a profile in `connection`.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twinbus.cli.output import CommandFailed, Misuse

MAX_FILE_BYTES: Final = 1_048_576
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Profile:
    """The connection of one profile."""

    connection_string: str = field(repr=False)
    admin_connection_string: str | None = field(default=None, repr=False)
    ca_files: tuple[str, ...] = ()
    namespace: str | None = None
    """Name of the namespace, if it was added from a ready file."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles of the user."""

    by_name: dict[str, Profile]
    default: str | None = None


def profiles_file() -> Path:
    """Return the path of the file: in $XDG_CONFIG_HOME, or else in ~/.config."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "twinbus" / "profiles.toml"


def check_name(name: str) -> str:
    """Return the name. Raise Misuse if it is not valid for a profile."""
    if _NAME.fullmatch(name) is None:
        raise Misuse(f"{name!r:.80} is not a name for a profile: use up to 64 letters, digits, dots, _ and -")
    return name


def read_profiles() -> Profiles:
    """Return the profiles of the file; none if there is no file. Raise CommandFailed if it is invalid or unsafe."""
    file = profiles_file()
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Profiles({})
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as stream:
        if os.fstat(descriptor).st_mode & _OTHERS:
            raise CommandFailed(f"other users may read {file}, which has keys: run chmod 600 {file}")
        content = stream.read(MAX_FILE_BYTES)
    try:
        return _parse(tomllib.loads(content.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError):  # the error's text may contain a key
        raise CommandFailed(f"{file} is not valid: repair it, or remove it and add the profiles again") from None


def write_profiles(profiles: Profiles) -> None:
    """Replace the file atomically. Only its owner may read it."""
    file = profiles_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(_format(profiles))
            stream.flush()
            os.fsync(descriptor)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _parse(document: dict[str, Any]) -> Profiles:
    tables = document.get("profiles", {})
    if not isinstance(tables, dict):
        raise ValueError  # noqa: TRY004  # caught in read_profiles
    by_name = {name: _parse_profile(table) for name, table in tables.items()}
    default = document.get("default")
    return Profiles(by_name, default if default in by_name else None)


def _parse_profile(table: object) -> Profile:
    if not isinstance(table, dict):
        raise ValueError  # noqa: TRY004  # caught in read_profiles
    string, admin, ca_files = (table.get(key) for key in ("connection_string", "admin_connection_string", "ca_files"))
    if not isinstance(string, str) or not isinstance(admin, str | None) or not isinstance(ca_files, list | None):
        raise ValueError  # noqa: TRY004
    namespace = table.get("namespace")
    if not isinstance(namespace, str | None):
        raise ValueError  # noqa: TRY004
    return Profile(string, admin, tuple(map(str, ca_files or ())), namespace)


def _format(profiles: Profiles) -> str:
    from twinbus.model.entity_file.toml_writer import quoted  # noqa: PLC0415  # only `twinbus profile` writes

    lines = [] if profiles.default is None else [f"default = {quoted(profiles.default)}", ""]
    for name, profile in profiles.by_name.items():
        lines += [f"[profiles.{quoted(name)}]", f"connection_string = {quoted(profile.connection_string)}"]
        if profile.admin_connection_string is not None:
            lines.append(f"admin_connection_string = {quoted(profile.admin_connection_string)}")
        if profile.namespace is not None:
            lines.append(f"namespace = {quoted(profile.namespace)}")
        if profile.ca_files:
            lines.append(f"ca_files = [{', '.join(map(quoted, profile.ca_files))}]")
        lines.append("")
    return "\n".join(lines)
