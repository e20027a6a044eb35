"""Reading a file with entities; its suffix decides the format.

Owns: reading and parsing the file, and reporting syntax errors. `toml` and `emulator` read the content.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Final

from twinbus.model.entity_file import emulator, toml
from twinbus.model.entity_file.properties import unchecked
from twinbus.model.entity_file.section import Location

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.model.entity_file.plan import Plan
    from twinbus.model.entity_file.properties import RuleCheck

_STRING_OR_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""A string or a comment: a string is matched first, so that no comment starts inside it. An unterminated string reaches
to the end of the text."""
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


def read_plan(file: Path, name: str | None = None, check_rule: RuleCheck = unchecked) -> Plan:
    """Return the entities of a .toml file of twinbus, or of the Config.json of Microsoft's emulator.

    `name` selects a namespace in an emulator file; None selects the only namespace. Raise InvalidConfig for an invalid
    file.
    """
    content = parse_file(file)
    return toml.read(file, content, check_rule) if is_toml(file) else emulator.read(file, content, name, check_rule)[1]


def is_toml(file: Path) -> bool:
    """Return whether a file has the format of twinbus; all other files have the format of the emulator."""
    return file.suffix.lower() == ".toml"


def parse_file(file: Path) -> object:
    """Return the content of a TOML or JSON file. Raise InvalidConfig if it cannot be read or parsed."""
    location = Location(file)
    if file.suffix.lower() not in {".json", ".toml"}:
        raise location.error("must be a .json file of Microsoft's emulator or a .toml file of twinbus")
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise location.error(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise location.error(f"is not UTF-8 (byte {error.start})") from None
    return _parse_toml(location, content) if is_toml(file) else _parse_json(location, content)


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
