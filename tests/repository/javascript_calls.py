"""Methods of the JavaScript SDK that a test calls, with the classes of the objects: read from the sources.

    found = calls_of(ROOT / "tests/sdk_js/sending.test.js", "brings the messages of an array in their order")
    assert ("ServiceBusSender", "sendMessages") in found

A simpler counterpart of `python_calls`: the class of an object is known from `new`, from the SDK's methods that create
objects, and from the helpers of the file and of bus.js, which are followed. The JavaScript is not parsed: strings and
comments are blanked, and the rest is read by its brackets.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

Kinds: TypeAlias = frozenset[str]
Calls: TypeAlias = set[tuple[str, str]]

CREATED_CLASSES: Final = {
    "createSender": "ServiceBusSender",
    "createReceiver": "ServiceBusReceiver",
    "acceptSession": "ServiceBusSessionReceiver",
    "acceptNextSession": "ServiceBusSessionReceiver",
    "createRuleManager": "ServiceBusRuleManager",
    "createMessageBatch": "ServiceBusMessageBatch",
}
"""Methods of the SDK that create objects, with the classes of the objects."""
NOTHING: Final[Kinds] = frozenset()
_MAX_DEPTH: Final = 8
_BLANKED: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL
)
_FUNCTION: Final = re.compile(r"function\s+(\w+)\s*\(")
_ARROW: Final = re.compile(r"const\s+(\w+)\s*=\s*(?:async\s+)?\(([^()]*)\)\s*=>\s*")
_TEST: Final = re.compile(r"\bit\((?=[\"`])")
_DECLARED: Final = re.compile(r"\b(?:const|let)\s+(\w+|\[[^\]]*\])\s*=(?!=)\s*")
_LOOP: Final = re.compile(r"\bfor\s+(?:await\s+)?\(const\s+(\w+|\[[^\]]*\])\s+of\s+")
_CHAIN: Final = re.compile(r"(?<![\w.])(?:new\s+)?([A-Za-z_]\w*)")
_LINK: Final = re.compile(r"\s*\.\s*(\w+)\s*(?=\()")
_PROPERTY: Final = re.compile(r"\s*\.\s*\w+(?!\w|\s*\()")


class Function(NamedTuple):
    """Helper function."""

    parameters: tuple[str, ...]
    body: str


def _blank(text: str) -> str:
    """Replace strings and comments by blanks; positions and quotes stay."""

    def blanks(match: re.Match[str]) -> str:
        matched = match[0]
        if matched.startswith("/"):
            return re.sub(r"[^\n]", " ", matched)
        return matched[0] + re.sub(r"[^\n]", " ", matched[1:-1]) + matched[-1]

    return _BLANKED.sub(blanks, text)


def _closing(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "([{":
            depth += 1
        elif text[position] in ")]}":
            depth -= 1
            if depth == 0:
                return position + 1
    raise AssertionError(text[start : start + 60])


def _parts(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def _expression(text: str, start: int) -> str:
    """Return the text from a position to the end of the statement or of the enclosing bracket."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "([{":
            depth += 1
        elif text[position] in ")]}":
            depth -= 1
            if depth < 0:
                return text[start:position]
        elif text[position] == ";" and depth == 0:
            return text[start:position]
    return text[start:]


def _items(text: str) -> list[str]:
    """Return the elements of a list expression."""
    match = re.match(r"[\s(]*(?:await\s+)?(?:Promise\.all\()?\s*(?=\[)", text)
    return _parts(text[match.end() + 1 : _closing(text, match.end()) - 1]) if match is not None else []


class JavaScriptFile:
    """One file: its tests by title, its helpers, and the text outside of both."""

    def __init__(self, file: Path) -> None:
        raw = file.read_text()
        text = _blank(raw)
        self.tests: dict[str, str] = {}
        rest, begin = [], 0
        for match in _TEST.finditer(text):
            end = _closing(text, match.end() - 1)
            quote = text[match.end()]
            title = raw[match.end() + 1 : text.index(quote, match.end() + 1)]
            self.tests[title] = text[match.end() : end]
            rest.append(text[begin : match.start()])
            begin = end
        self.outside = "".join([*rest, text[begin:]])
        self.functions: dict[str, Function] = {}
        for match in _FUNCTION.finditer(self.outside):
            end = _closing(self.outside, match.end() - 1)
            names = tuple(re.sub(r"\W.*", "", part) for part in _parts(self.outside[match.end() : end - 1]))
            opening = self.outside.index("{", end)
            self.functions[match[1]] = Function(names, self.outside[opening : _closing(self.outside, opening)])
        for match in _ARROW.finditer(self.outside):
            names = tuple(re.sub(r"\W.*", "", part) for part in _parts(match[2]))
            self.functions[match[1]] = Function(names, f"return {_expression(self.outside, match.end())};")


@cache
def read_program(file: Path) -> JavaScriptFile:
    """Return a file, read once."""
    return JavaScriptFile(file)


class _Walk:
    """Walk through one test."""

    def __init__(self, helpers: dict[str, Function]) -> None:
        self.calls: Calls = set()
        self._helpers = helpers
        self._results: dict[tuple[str, tuple[Kinds, ...]], Kinds] = {}

    def region(self, text: str, names: dict[str, Kinds], depth: int) -> dict[str, Kinds]:
        """Read statements; return the names that are known after them."""
        known = dict(names)
        for match in sorted(
            [*_DECLARED.finditer(text), *_LOOP.finditer(text)], key=lambda declaration: declaration.start()
        ):
            value = _expression(text, match.end())
            if match[1].startswith("["):
                targets, values = _parts(match[1][1:-1]), _items(value)
                for index, target in enumerate(targets):
                    source = values[index] if len(values) == len(targets) else value
                    known[target] = self.kind_of(source, known, depth)
            else:
                known[match[1]] = self.kind_of(value, known, depth)
        self.read(text, known, depth)
        return known

    def read(self, text: str, names: dict[str, Kinds], depth: int) -> None:
        """Find every call in a text."""
        for match in _CHAIN.finditer(text):
            self._chain(text, match, names, depth)

    def kind_of(self, text: str, names: dict[str, Kinds], depth: int) -> Kinds:
        """Return the class of an expression; for a list, that of its elements."""
        text = re.sub(r"^[\s(]*(?:await\s+)?[\s(]*", "", text)
        if text.startswith("["):
            inner = _parts(text[1 : _closing(text, 0) - 1])
            return NOTHING.union(*[self.kind_of(part, names, depth) for part in inner])
        mapped = re.match(r"(?:Promise\.all\()?.*?\.map\(\s*(?:async\s+)?\([^()]*\)\s*=>\s*", text, re.DOTALL)
        if mapped is not None:
            return self.kind_of(text[mapped.end() :], names, depth)
        if text.startswith("Promise.all("):
            return self.kind_of(text[len("Promise.all(") :], names, depth)
        match = _CHAIN.match(text)
        return self._chain(text, match, names, depth) if match is not None else NOTHING

    def _chain(self, text: str, match: re.Match[str], names: dict[str, Kinds], depth: int) -> Kinds:
        """Record each method of `name(...).method(...)...` with its class; return the class of the result."""
        name, position = match[1], match.end()
        kinds = names.get(name, NOTHING)
        if position < len(text) and text[position] == "(":
            end = _closing(text, position)
            given = [self.kind_of(part, names, depth) for part in _parts(text[position + 1 : end - 1])]
            is_new = match[0].startswith("new")
            kinds = frozenset({name}) if is_new else self._help(name, given, depth) if name not in names else NOTHING
            position = end
        while True:
            link = _LINK.match(text, position)
            if link is None:
                return NOTHING if _PROPERTY.match(text, position) else kinds
            self.calls |= {(kind, link[1]) for kind in kinds}
            kinds = frozenset({CREATED_CLASSES[link[1]]}) if kinds and link[1] in CREATED_CLASSES else NOTHING
            position = _closing(text, link.end())

    def _help(self, name: str, given: list[Kinds], depth: int) -> Kinds:
        """Follow a call of a helper; return the class of its result."""
        helper = self._helpers.get(name)
        key = (name, tuple(given))
        if helper is None or depth > _MAX_DEPTH:
            return NOTHING
        if key not in self._results:
            self._results[key] = NOTHING
            known = self.region(
                helper.body, self.outside | dict(zip(helper.parameters, given, strict=False)), depth + 1
            )
            returned = [
                self.kind_of(_expression(helper.body, match.end()), known, depth + 1)
                for match in re.finditer(r"\breturn\b", helper.body)
            ]
            self._results[key] = NOTHING.union(*returned)
        return self._results[key]

    outside: dict[str, Kinds] = {}  # noqa: RUF012  # set once, before the tests are read


@cache
def calls_of(file: Path, title: str) -> Calls:
    """Return all calls of a test and its helpers: pairs of a class and a method."""
    here, shared = read_program(file), read_program(file.parent / "bus.js")
    assert title in here.tests, f"{file.name} has no test {title!r}"
    walk = _Walk({**shared.functions, **here.functions})
    walk.outside = walk.region(shared.outside, {}, 0)
    walk.outside = walk.region(here.outside, walk.outside, 0)
    walk.calls = set()
    walk._results.clear()  # noqa: SLF001  # calls outside of the test are not its own
    walk.region(here.tests[title], walk.outside, 0)
    return walk.calls
