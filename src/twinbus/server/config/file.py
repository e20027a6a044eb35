"""Reading a configuration file, whose suffix decides the format.

Owns: reading and parsing the file, and reporting syntax errors.
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
"""A string or a comment. Strings are matched first, so that no comment starts inside a string. An unterminated string
reaches to the end of the text."""
_NOT_LINE_END: Final = re.compile(r"[^\r\n]")


class UnterminatedComment(Exception):
    """A `/*` without `*/`."""

    def __init__(self, line: int, column: int) -> None:
        """Create the error for a comment that starts at `line` and `column`, both counted from 1."""
        super().__init__(f"line {line}, column {column}: the comment is not closed: add */")


def blank_comments(text: str) -> str:
    """Return the text with comments replaced by spaces. Raise UnterminatedComment for a comment that is not closed."""

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
    """Return the fields of ServeSettings that the file sets.

    `name` selects a namespace in an emulator file; None selects the only namespace.
    """
    location = Location(file)
    if file.suffix.lower() not in {".json", ".toml"}:
        raise location.error("must be a .json file of Microsoft's emulator or a .toml file of twinbus")
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise location.error(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise location.error(f"is not UTF-8 (byte {error.start})") from None
    if file.suffix.lower() == ".toml":
        return toml.read(file, _parse_toml(location, content))
    namespace_name, plan = emulator.read(file, _parse_json(location, content), name)
    return {"name": namespace_name, "plan": plan}


def _parse_toml(location: Location, content: str) -> object:
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise location.error(f"{error}") from None  # the error text has the line and column


def _parse_json(location: Location, content: str) -> object:
    def make_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in pairs:
            if key in values:
                raise location.error(f"an object has the key {key!r:.60} twice")
            values[key] = value
        return values

    try:
        return json.loads(blank_comments(content), object_pairs_hook=make_dict)
    except UnterminatedComment as error:
        raise location.error(str(error)) from None
    except json.JSONDecodeError as error:
        raise location.error(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise location.error("is nested too deeply") from None
