"""Every numbered statement of docs/statements.md has a test that `make test` runs, or is listed as open."""

from __future__ import annotations

import pytest

from tests.statements import NUMBERS, OPEN, PAGE, ROOT, find_tests, numbers_of, statements, updated

TESTS = find_tests()


def test_the_page_holds_every_statement_once_and_in_order() -> None:
    assert tuple(statement.number for statement in statements()) == NUMBERS


@pytest.mark.parametrize("number", [number for number in NUMBERS if number not in OPEN])
def test_a_statement_has_a_test(number: str) -> None:
    assert TESTS[number], f"no test that `make test` runs and that checks something shows {number}"


@pytest.mark.parametrize("number", OPEN)
def test_an_open_statement_has_no_test_and_its_reason_holds(number: str) -> None:
    assert number not in TESTS, f"{number} is shown by {TESTS[number]}: remove it from OPEN"
    assert [path.name for path in (ROOT / "src/twinbus/portal").glob("*.py")] == ["__init__.py"], "the portal exists"


def test_no_test_shows_a_statement_that_does_not_exist() -> None:
    assert sorted(set(TESTS) - set(NUMBERS)) == []


def test_a_range_in_a_name_stands_for_all_its_numbers() -> None:
    assert numbers_of("test_r012_to_r014_and_q01_hold") == {"R012", "R013", "R014", "Q01"}


def test_the_page_names_the_current_tests() -> None:
    assert PAGE.read_text() == updated(PAGE.read_text()), "run `python -m tests.statements --write`"
