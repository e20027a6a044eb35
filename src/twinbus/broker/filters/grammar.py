"""The grammar of filters and actions, and what is said of a text that does not follow it.

LALR: no text makes the parser go back, so reading takes time in proportion to its length. Chains (a AND b AND c,
1 + 2 + 3) come flat and parentheses leave nothing behind, so that a tree is as deep as its text is nested, no deeper.

Owns: which texts are expressions. What they mean is for `syntax` to say.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILTER: Final = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: inverted (_AND inverted)*
?inverted: _NOT inverted -> negation
    | test
?test: sum COMPARISON sum -> comparison
    | sum _IS NULL -> is_null
    | sum _IS _NOT NULL -> is_not_null
    | sum _IN choices -> one_of
    | sum _NOT _IN choices -> none_of
    | sum _LIKE sum (_ESCAPE sum)? -> like
    | sum _NOT _LIKE sum (_ESCAPE sum)? -> unlike
    | _EXISTS "(" property ")" -> exists
    | "(" disjunction ")"
choices: "(" sum ("," sum)* ")"
COMPARISON: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
"""

_ACTION: Final = r"""
start: _separator* (_statement _separator*)+
_statement: set | remove
_separator: ";" | ","
set: _SET property "=" sum
remove: _REMOVE property
_SET.2: /set\b/i
_REMOVE.2: /remove\b/i
"""

_EXPRESSION: Final = r"""
?sum: product ((PLUS | MINUS) product)*
?product: signed ((STAR | SLASH | PERCENT) signed)*
?signed: (PLUS | MINUS) signed -> sign
    | value
?value: constant
    | parameter
    | property
    | call
    | "(" sum ")"
constant: TEXT | INTEGER | DECIMAL | TRUE | FALSE | NULL
parameter: PARAMETER
property: (_name ".")? _name
_name: NAME | BRACKETED | QUOTED
call: NAME "(" (sum ("," sum)*)? ")"

PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"
_OR.2: /or\b/i
_AND.2: /and\b/i
_NOT.2: /not\b/i
_IS.2: /is\b/i
_IN.2: /in\b/i
_LIKE.2: /like\b/i
_ESCAPE.2: /escape\b/i
_EXISTS.2: /exists\b/i
NULL.2: /null\b/i
TRUE.2: /true\b/i
FALSE.2: /false\b/i
NAME: /[^\W\d]\w*/
BRACKETED: /\[(?:[^\]]|\]\])*\]/
QUOTED: /"(?:[^"]|"")*"/
PARAMETER: /@\w+/
TEXT: /'(?:[^']|'')*'/
DECIMAL.1: /(?:\d+\.\d*|\.\d+)(?:e[+-]?\d+)?|\d+e[+-]?\d+/i
INTEGER: /\d+/
%ignore /\s+/
"""

_GRAMMARS: Final = {"filter": _FILTER, "action": _ACTION}


@cache
def _parser(kind: str) -> Lark:
    """Made when the first expression is read: that takes a tenth of a second, and most namespaces never need it.

    The basic lexer keeps keywords reserved everywhere, as documented; the other would take them for names at times.
    """
    return Lark(_GRAMMARS[kind] + _EXPRESSION, parser="lalr", lexer="basic")


_TERMINAL_NAMES: Final = {
    "a property or a constant": {"TEXT", "INTEGER", "DECIMAL", "TRUE", "FALSE", "PARAMETER", "LPAR"},
    "a property": {"NAME", "BRACKETED", "QUOTED"},
    "NOT": {"_NOT"},
    "EXISTS": {"_EXISTS"},
    "NULL": {"NULL"},
    "a comparison": {"COMPARISON"},
    "IS": {"_IS"},
    "IN": {"_IN"},
    "LIKE": {"_LIKE"},
    "ESCAPE": {"_ESCAPE"},
    "an arithmetic sign": {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT"},
    "AND": {"_AND"},
    "OR": {"_OR"},
    "'='": {"EQUAL"},
    "'('": {"LPAR"},
    "')'": {"RPAR"},
    "','": {"COMMA"},
    "';'": {"SEMICOLON"},
    "SET": {"_SET"},
    "REMOVE": {"_REMOVE"},
    "the end": {"$END"},
}
_IMPLIED_TERMINALS: Final = {"a property or a constant": {"NAME", "BRACKETED", "QUOTED", "NULL"}}
"""What need not be said once that was."""
_QUOTES: Final = "'\"["


def parse(text: str, kind: str) -> Tree[Token]:
    """The tree of a text; `what` is "filter" or "action". InvalidArgument, with the place, if it is none."""
    try:
        return _parser(kind).parse(text)
    except UnexpectedCharacters as error:
        at: int = error.pos_in_stream  # type: ignore[assignment]  # lark says None, and gives a number
        raise syntax_error(text, kind, at, _describe_stray(text[at])) from None
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        found, at = ("the end", len(text)) if at_end else (repr(str(error.token))[:60], error.token.start_pos or 0)
        raise syntax_error(
            text, kind, at, f"found {found}, expected {_describe_expected(error.accepts or error.expected)}"
        ) from None


def syntax_error(text: str, kind: str, position: int, message: str) -> InvalidArgument:
    """What is wrong, and where."""
    before = text[:position]
    line, column = before.count("\n") + 1, position - before.rfind("\n")
    return InvalidArgument(f"the {kind} is wrong at line {line}, column {column}: {message}")


def _describe_stray(character: str) -> str:
    if character in _QUOTES:
        return f"found {character!r}, which nothing closes"
    return f"found {character!r}, which has no meaning here"


def _describe_expected(terminals: Iterable[str]) -> str:
    left = set(terminals)
    words: list[str] = []
    for word, meant in _TERMINAL_NAMES.items():
        if meant <= left:
            words.append(word)
            left -= meant | _IMPLIED_TERMINALS.get(word, set())
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
