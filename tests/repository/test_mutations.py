"""The recorded mutations fit the code: each changes a line, and its tests exist and carry its statement's number."""

from __future__ import annotations

import re

import pytest

from tests.mutations.catalogue import ROOT, Mutation, load

MUTATIONS = [pytest.param(mutation, id=f"{mutation.topic}: {mutation.breaks}") for mutation in load()]
NUMBERED = re.compile(r"[RQCX]\d{2,3}")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_changes_the_code_that_is_there(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.applied(text) != text


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_names_tests_that_exist_and_show_its_statement(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test
        for number in NUMBERED.findall(mutation.statement):
            assert f"_{number.lower()}_" in name, f"{test} does not say that it shows {number}"
