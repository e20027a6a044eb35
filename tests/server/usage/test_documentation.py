"""docs/pipeline-metering.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.model.usage import BEGIN, COLUMNS, DOCUMENT_TERMS, END, LOST, OPERATION_TERMS, OTHER_ENTITY, ROWS_MAX
from twinbus.server.usage.meter import CLIENT_ID_PROPERTY, MAX_COUNTERS

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-metering.md").read_text()


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/pipeline-metering.md", "exec"), names)  # noqa: S102  # ours
    test = names["test_an_order_is_three_operations"]
    assert callable(test)
    test()


def test_every_column_mark_and_limit_is_documented() -> None:
    first_cells = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("|")]
    documented = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert {*COLUMNS} <= documented
    for name in (BEGIN, END, LOST, OTHER_ENTITY, CLIENT_ID_PROPERTY):
        assert f"`{name}`" in PAGE
    for number in (ROWS_MAX, MAX_COUNTERS):
        assert f"{number:,}" in PAGE


def test_the_columns_of_both_models_are_documented() -> None:
    document, added = re.findall(r"^\| (?:document's|operations) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", document)) == DOCUMENT_TERMS
    assert (*DOCUMENT_TERMS, *re.findall(r"`(\w+)`", added)) == OPERATION_TERMS
