"""Comments in JSON: `// ...` and `/* ... */`, which Microsoft's emulator ships in its sample and skips.

    json.loads(blank_comments(text))

Owns: where a comment starts and ends. A string may hold `//` or `/*`, and stays as it is. Comments become blanks and
lines stay lines, so an error of the JSON parser names the line and column of the file.
"""

from __future__ import annotations

import re
from typing import Final

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
