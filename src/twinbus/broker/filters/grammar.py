"""The grammar of filters and actions, and the errors for text that does not match it.

The parser is LALR and never backtracks, so parsing takes linear time. Chains (a AND b AND c, 1 + 2 + 3) become one flat
node and parentheses produce no node, so a tree is no deeper than the nesting of its text.

Owns the syntax of expressions. `parser` turns the trees into `syntax_tree` nodes.
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
    """Build the parser on first use: building takes a tenth of a second, and most namespaces never parse an expression.

    The basic lexer reserves keywords everywhere, as documented; the contextual lexer would sometimes accept a keyword
    as a name.
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
"""Terminals that the words in the key already describe; an error message with these words does not list them again."""
_QUOTES: Final = "'\"["


def parse(text: str, kind: str) -> Tree[Token]:
    """Parse `text` as a `kind` ("filter" or "action"); raise InvalidArgument with the position of a syntax error."""
    try:
        return _parser(kind).parse(text)
    except UnexpectedCharacters as error:
        at: int = error.pos_in_stream  # type: ignore[assignment]  # lark declares None but sets an int
        raise syntax_error(text, kind, at, _describe_stray(text[at])) from None
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        found, at = ("the end", len(text)) if at_end else (repr(str(error.token))[:60], error.token.start_pos or 0)
        raise syntax_error(
            text, kind, at, f"found {found}, expected {_describe_expected(error.accepts or error.expected)}"
        ) from None


def syntax_error(text: str, kind: str, position: int, message: str) -> InvalidArgument:
    """Return an error with the line and column of `position` in `text`."""
    before = text[:position]
    line, column = before.count("\n") + 1, position - before.rfind("\n")
    return InvalidArgument(f"the {kind} is wrong at line {line}, column {column}: {message}")


def _describe_stray(character: str) -> str:
    if character in _QUOTES:
        return f"found {character!r} without a closing quote or bracket"
    return f"found unexpected character {character!r}"


def _describe_expected(terminals: Iterable[str]) -> str:
    remaining = set(terminals)
    words: list[str] = []
    for word, covered in _TERMINAL_NAMES.items():
        if covered <= remaining:
            words.append(word)
            remaining -= covered | _IMPLIED_TERMINALS.get(word, set())
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
