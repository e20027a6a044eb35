"""Invalid rules are refused when they are created, with the position, what was found, and what was expected."""

from __future__ import annotations

import time

import pytest

from tests.broker.filters.messages import sql
from twinbus.model.errors import InvalidArgument


@pytest.mark.parametrize(
    ("expression", "position", "complaint"),
    [
        ("", "line 1, column 1", "found the end, expected a property or a constant, NOT or EXISTS"),
        ("color", "line 1, column 6", "found the end, expected NOT, a comparison, IS, IN or LIKE"),
        ("color =", "line 1, column 8", "found the end, expected a property or a constant"),
        ("color == 1", "line 1, column 8", "found '='"),
        ("color = 'red", "line 1, column 9", "without a closing quote or bracket"),
        ("[color = 1", "line 1, column 1", "without a closing quote or bracket"),
        ('"color = 1', "line 1, column 1", "without a closing quote or bracket"),
        ("color = 1 size = 2", "line 1, column 11", "found 'size', expected an arithmetic sign, AND, OR or the end"),
        ("color = 1\nAND\n  size ? 2", "line 3, column 8", "found unexpected character '?'"),
        ("and = 1", "line 1, column 1", "found 'and'"),
        ("user.like = 1", "line 1, column 6", "found 'like', expected a property"),
        ("(color = 1", "line 1, column 11", "')'"),
        ("color = 1)", "line 1, column 10", "found ')'"),
        ("color IN ()", "line 1, column 11", "found ')', expected a property or a constant"),
        ("color IN 1", "line 1, column 10", "found '1', expected '('"),
        ("color BETWEEN 1 AND 2", "line 1, column 7", "found 'BETWEEN'"),
        ("color IS 1", "line 1, column 10", "found '1', expected NOT or NULL"),
        ("EXISTS(1)", "line 1, column 8", "found '1', expected a property"),
        ("EXISTS color", "line 1, column 8", "expected '('"),
        ("TRUE", "line 1, column 5", "found the end"),
        ("(color = 1) = TRUE", "line 1, column 13", "found '='"),
        ("sys.Nothing = 1", "line 1, column 5", "unknown system property 'Nothing'; use one of MessageId, To"),
        ("sys.LockToken = 1", "line 1, column 5", "unknown system property 'LockToken'"),
        ("color = 1 AND other.x = 1", "line 1, column 15", "unknown scope other"),
        ("[] = 1", "line 1, column 1", "at least one character"),
        ("newid(1) = 1", "line 1, column 1", "unknown function"),
        ("lower(color) = 'x'", "line 1, column 1", "unknown function"),
        ("p(1) = 'x'", "line 1, column 1", "must be a non-empty string, not a number"),
        ("p('') = 'x'", "line 1, column 1", "must be a non-empty string"),
        ("color = @nobody", "line 1, column 9", "the parameter @nobody has no value"),
        ("size = 9223372036854775808", "line 1, column 8", "does not fit into 64 bits"),
        ("size = -9223372036854775809", "line 1, column 9", "does not fit into 64 bits"),
        ("size = 1e400", "line 1, column 8", "does not fit into 64 bits"),
        ("size = 1 / 0", "line 1, column 8", "division by zero"),
        ("size = 'a' - 1", "line 1, column 8", "cannot compute a string - a number"),
        ("size = -'a'", "line 1, column 8", "- cannot be applied to a string"),
        ("color LIKE 5", "line 1, column 12", "must be strings, not a number"),
        ("color LIKE 'a' ESCAPE 'xy'", "line 1, column 12", "exactly one character"),
        ("color LIKE 'a' ESCAPE ''", "line 1, column 12", "exactly one character"),
        ("color LIKE 'a!' ESCAPE '!'", "line 1, column 12", "ends with its escape character"),
    ],
)
def test_an_invalid_filter_is_refused(expression: str, position: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sql(expression)
    assert str(refused.value).startswith(f"the filter is wrong at {position}: ")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "position", "complaint"),
    [
        ("", "line 1, column 1", "found the end, expected ',', ';', SET or REMOVE"),
        (";", "line 1, column 2", "found the end"),
        ("UPDATE a = 1", "line 1, column 1", "found 'UPDATE'"),
        ("SET color", "line 1, column 10", "found the end, expected '='"),
        ("SET color = ", "line 1, column 13", "expected a property or a constant"),
        ("SET 'color' = 1", "line 1, column 5", "expected a property"),
        ("REMOVE color = 1", "line 1, column 14", "found '='"),
        ("SET a = 1;\nREMOVE", "line 2, column 7", "found the end, expected a property"),
        (
            "SET sys.SequenceNumber = 1",
            "line 1, column 5",
            "SequenceNumber cannot be changed; use one of MessageId",
        ),
        ("REMOVE sys.MessageId", "line 1, column 8", "MessageId cannot be removed"),
        ("SET sys.MessageId = NULL", "line 1, column 5", "MessageId must be a string, not null"),
        ("SET sys.Nothing = 1", "line 1, column 9", "unknown system property"),
        ("SET sys.TimeToLive = 5", "line 1, column 5", "TimeToLive must be a duration of at least zero"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'now'", "line 1, column 5", "must be a time, not a string"),
        ("SET sys.Label = TRUE", "line 1, column 5", "Label must be a string, not a boolean"),
        ("SET sys.ContentType = 'größe'", "line 1, column 5", "ASCII"),
        ("SET sys.SessionId = '" + 129 * "x" + "'", "line 1, column 5", "129 characters; the limit is 128"),
        ("SET a = 1 / 0", "line 1, column 9", "division by zero"),
    ],
)
def test_an_invalid_action_is_refused(expression: str, position: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sql("1 = 1", expression)
    assert str(refused.value).startswith(f"the action is wrong at {position}: ")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "seven"),
        ("int", "7.5"),
        ("long", "9223372036854775808"),
        ("double", "x"),
        ("boolean", "yes"),
        ("dateTime", "tomorrow"),
        ("dateTime", "2023-11-14"),
        ("dateTime", "2023-02-30T00:00:00Z"),
        ("duration", "1 minute"),
        ("duration", "P"),
        ("guid", "3f25"),
        ("binary", "?"),
    ],
)
def test_a_parameter_that_does_not_match_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the parameter '@x' is '.*', not a valid {kind}"):
        sql("a = @x", x=(kind, text))


@pytest.mark.parametrize(
    "expression",
    [
        "NOT " * 200 + "a = 1",
        "- " * 400 + "1 = a",
        "(1+" * 250 + "a" + ")" * 250 + " = 1",
        "p(" * 300 + "'a'" + ")" * 300 + " = 1",
        "NOT (a=1 AND " * 60 + "a=1" + ")" * 60,
    ],
)
def test_expressions_nested_too_deeply_are_refused(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="nested deeper than 50 levels"):
        sql(expression)


@pytest.mark.parametrize(
    "expression",
    ["(" * 500 + "a = 1" + ")" * 500, "a=1" + " OR a=1" * 140, "a=1" + "+1" * 500, "a IN (1" + ",1" * 500 + ")"],
)
def test_long_chains_and_redundant_parentheses_do_not_count_as_nesting(expression: str) -> None:
    assert len(expression) <= 1024
    sql(expression)


def test_a_deeply_nested_filter_compiles_quickly() -> None:
    nested = "a=1 OR (b>1 AND (" * 24 + "a=1" + "))" * 24
    started = time.process_time()
    sql(nested)
    assert time.process_time() - started < 1  # takes a hundredth of that on an idle machine
