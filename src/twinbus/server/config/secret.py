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
    from twinbus.server.config.place import Place
    from twinbus.server.config.section import Section

PRIMARY: Final = "secret"
SECONDARY: Final = "secondary_secret"
SECRET_KEYS: Final = tuple(f"{name}{end}" for name in (PRIMARY, SECONDARY) for end in ("", "_file", "_env"))
_FOR_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_BYTES: Final = 4_096


def read_secret(section: Section, name: str) -> str | None:
    """The secret of that name, or None."""
    given = [key for key in (name, f"{name}_file", f"{name}_env") if section.has(key)]
    if len(given) > 1:
        raise section.place.below(given[1]).refusal(f"{given[0]} is there too: give one of them")
    return (
        section.get(name, _from_here)
        or section.get(f"{name}_file", _from_file)
        or section.get(f"{name}_env", _from_environment)
    )


def _from_here(place: Place, value: object) -> str:
    mode = place.file.stat().st_mode
    if mode & _FOR_OTHERS:
        raise place.refusal(
            f"a secret cannot stand in a file that others than its owner may read (mode {stat.S_IMODE(mode):04o}): "
            "chmod 600 it, or use secret_file or secret_env"
        )
    return _not_empty(place, text(place, value))


def _from_file(place: Place, value: object) -> str:
    file = path(place, value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES)
    except OSError as error:
        raise place.refusal(f"{file} cannot be read: {error.strerror}") from None
    return _not_empty(place, content.decode("utf-8", "replace").strip())


def _from_environment(place: Place, value: object) -> str:
    name = text(place, value)
    if name not in os.environ:
        raise place.refusal(f"there is no environment variable {name!r:.60}")
    return _not_empty(place, os.environ[name].strip())


def _not_empty(place: Place, secret: str) -> str:
    if not secret:
        raise place.refusal("the secret is empty")
    return secret
