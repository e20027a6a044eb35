"""Secrets that a configuration file names: where they are better kept, or the text itself.

    secret_file = "/run/secrets/app"    # or secret_env = "APP_KEY", or secret = "c2VjcmV0..."

Owns: that a secret stands in a file only if nobody but its owner may read the file, and that no error shows one.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from twinbus.server.config.section import path, text

if TYPE_CHECKING:
    from twinbus.server.config.place import Location
    from twinbus.server.config.section import Section

PRIMARY_SECRET: Final = "secret"  # noqa: S105  # a key of the file, not a secret
SECONDARY_SECRET: Final = "secondary_secret"  # noqa: S105
SECRET_KEYS: Final = tuple(
    f"{name}{end}" for name in (PRIMARY_SECRET, SECONDARY_SECRET) for end in ("", "_file", "_env")
)
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_SECRET_BYTES: Final = 4_096


def read_secret(section: Section, name: str) -> str | None:
    """The secret of that name, or None."""
    given = [key for key in (name, f"{name}_file", f"{name}_env") if section.has(key)]
    if len(given) > 1:
        raise section.location.child(given[1]).error(f"{given[0]} is there too: give one of them")
    return (
        section.get(name, _read_inline_secret)
        or section.get(f"{name}_file", _read_secret_file)
        or section.get(f"{name}_env", _read_secret_variable)
    )


def _read_inline_secret(location: Location, value: object) -> str:
    mode = location.file.stat().st_mode
    if mode & _OTHERS_MODE:
        raise location.error(
            f"a secret cannot stand in a file that others than its owner may read (mode {stat.S_IMODE(mode):04o}): "
            "chmod 600 it, or use secret_file or secret_env"
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
