"""The page on compatibility claims nothing without a test, and leaves out no method of the SDK for Python."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessageBatch,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSession,
)
from azure.servicebus import aio as messaging_aio
from azure.servicebus.aio import management as management_aio
from azure.servicebus.management import ServiceBusAdministrationClient

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
ANSWERS = {"yes", "no", "not tried"}
CLASSES: dict[type, type | None] = {
    ServiceBusClient: messaging_aio.ServiceBusClient,
    ServiceBusSender: messaging_aio.ServiceBusSender,
    ServiceBusReceiver: messaging_aio.ServiceBusReceiver,
    ServiceBusSession: messaging_aio.ServiceBusSession,
    AutoLockRenewer: messaging_aio.AutoLockRenewer,
    ServiceBusMessageBatch: None,
    ServiceBusAdministrationClient: management_aio.ServiceBusAdministrationClient,
}
"""Of the SDK for Python: those that talk to the service, each with its sibling in aio."""
JAVASCRIPT = ROOT / "tests" / "sdk_js"


class Row(NamedTuple):
    """One operation."""

    section: str
    operation: str
    works: str
    said: str

    @property
    def test(self) -> str:
        """What is named in its last cell, which has nothing else."""
        match = re.fullmatch(r"`(tests/[^`]+)`", self.said)
        assert match, f"'{self.operation}' works, so its last cell is a test: {self.said!r}"
        return match[1]

    @property
    def method(self) -> str | None:
        """That of an SDK's class, if it is one."""
        is_class = re.fullmatch(r"`\w+`( of JavaScript)?", self.section)
        match = re.fullmatch(r"`(\w+)`", self.operation)
        return match[1] if is_class and match else None


def read() -> list[Row]:
    rows: list[Row] = []
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith(("|---", "| operation |")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, line
            rows.append(Row(section, *cells))
    return rows


ROWS = read()
NAMED = [pytest.param(row, id=f"{number} {row.section}: {row.operation}") for number, row in enumerate(ROWS, start=1)]
WORKING = [one for one, row in zip(NAMED, ROWS, strict=True) if row.works == "yes"]
OTHERS = [one for one, row in zip(NAMED, ROWS, strict=True) if row.works != "yes"]


class Shown(NamedTuple):
    """A test."""

    calls: set[str]
    """Names of methods in it, and in what tests of its folder or file share."""


def names_in(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@cache
def python_tests(file: Path) -> dict[str, Shown]:
    """By name: `test_name`, or `TestClass::test_name`."""
    found: dict[str, ast.AST] = {}
    helpers: list[ast.AST] = [
        ast.parse(path.read_text()) for path in file.parent.glob("*.py") if not path.name.startswith("test_")
    ]
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{node.name}::{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found[node.name] = node
        else:
            helpers.append(node)
    shared = set[str]().union(*map(names_in, helpers))
    return {name: Shown(shared | names_in(test)) for name, test in found.items()}


@cache
def javascript_tests(file: Path) -> dict[str, Shown]:
    """By title."""

    def called(text: str) -> set[str]:
        return set(re.findall(r"\.(\w+)\(", text))

    head, *parts = re.split(r"^ *it\((?=[\"`])", file.read_text(), flags=re.MULTILINE)
    shared = called(head) | called((file.parent / "bus.js").read_text())
    found: dict[str, Shown] = {}
    for part in parts:
        title = re.match(r"([\"`])(.*)\1, ", part)
        assert title, f"{file.name} has a test without a title: {part[:60]}"
        found[title[2]] = Shown(shared | called(part))
    return found


def methods_of(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")}


def test_the_page_has_rows_of_every_kind() -> None:
    assert {row.works for row in ROWS} == ANSWERS


@pytest.mark.parametrize("row", WORKING)
def test_what_works_has_a_test(row: Row) -> None:
    if "::" in row.test:
        file, _, name = row.test.partition("::")
        assert name.rpartition("::")[2].startswith("test_")
        tests = python_tests(ROOT / file)
    else:
        file, _, name = row.test.partition(": ")
        tests = javascript_tests(ROOT / file)
    assert name in tests
    if row.method is not None:
        assert row.method in tests[name].calls


@pytest.mark.parametrize("row", OTHERS)
def test_what_does_not_work_has_a_reason(row: Row) -> None:
    assert row.works == "not tried" or len(row.said) > 10
    assert "tests/" not in row.said


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__) for kind in CLASSES])
def test_every_method_of_the_sdk_for_python_has_a_row(kind: type) -> None:
    sibling = CLASSES[kind]
    methods = methods_of(kind) | (methods_of(sibling) if sibling is not None else set())
    told = [row.operation for row in ROWS if row.section == f"`{kind.__name__}`"]
    assert methods
    assert sorted(told) == sorted(f"`{method}`" for method in methods)


def test_no_row_is_there_twice() -> None:
    counts = Counter((row.section, row.operation) for row in ROWS)
    assert [key for key, count in counts.items() if count > 1] == []
