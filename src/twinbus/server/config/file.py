"""A configuration file, whichever it is: its name says so.

Owns: reading it, and errors of its syntax.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from twinbus.server.config import emulator, toml
from twinbus.server.config.section import Location

if TYPE_CHECKING:
    from pathlib import Path

_STRING_OR_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""One token: a string is matched first, so that no comment starts inside of one. An open string ends with the text."""
_NOT_LINE_END: Final = re.compile(r"[^\r\n]")


class UnterminatedComment(Exception):
    """A `/*` without `*/`."""

    def __init__(self, line: int, column: int) -> None:
        """Both are counted from 1."""
        super().__init__(f"line {line}, column {column}: the comment has no end: close it with */")


def blank_comments(text: str) -> str:
    """Return the text with blanks in place of comments; UnendedComment names the place of one without an end."""

    def blank(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith('"'):
            return token
        if token.startswith("/*") and (not token.endswith("*/") or token == "/*/"):  # noqa: S105  # no password
            before = text[: match.start()]
            raise UnterminatedComment(before.count("\n") + 1, match.start() - before.rfind("\n"))
        return _NOT_LINE_END.sub(" ", token)

    return _STRING_OR_COMMENT.sub(blank, text)


def read_config(file: Path, name: str | None) -> dict[str, Any]:
    """Fields of ServeSettings, those that the file says something about. `name` is that of the namespace, if given."""
    place = Location(file)
    if file.suffix.lower() not in {".json", ".toml"}:
        raise place.error("is neither a .json file of Microsoft's emulator nor a .toml file of our own")
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise place.error(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise place.error(f"is not UTF-8 (byte {error.start})") from None
    if file.suffix.lower() == ".toml":
        return toml.read(file, _parse_toml(place, content))
    chosen, plan = emulator.read(file, _parse_json(place, content), name)
    return {"name": chosen, "plan": plan}


def _parse_toml(location: Location, content: str) -> object:
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise location.error(f"{error}") from None  # it says at which line and column


def _parse_json(location: Location, content: str) -> object:
    def without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise location.error(f"an object has the key {key!r:.60} twice")
            found[key] = value
        return found

    try:
        return json.loads(blank_comments(content), object_pairs_hook=without_repetition)
    except UnterminatedComment as error:
        raise location.error(str(error)) from None
    except json.JSONDecodeError as error:
        raise location.error(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise location.error("is nested too deeply") from None
