"""The recorded mutations match the code: each changes a line, and its tests exist and have its statement's number."""

from __future__ import annotations

import re

import pytest

from tests.mutations.catalogue import ROOT, Mutation, load
from tests.statements import numbers_of

MUTATIONS = [
    pytest.param(mutation, id=f"{number} {mutation.statement}: {mutation.breaks}")
    for number, mutation in enumerate(load(), start=1)
]
NUMBERED = re.compile(r"[RQCX]\d{2,3}")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_changes_the_code(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.applied(text) != text


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_names_tests_that_exist_and_show_its_statement(mutation: Mutation) -> None:
    shown: set[str] = set()
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test
        shown |= numbers_of(name)
    assert set(NUMBERED.findall(mutation.statement)) <= shown
