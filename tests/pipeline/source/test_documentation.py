"""docs/pipeline-source.md: its examples are run as they stand, one after the other; and it tells what is so."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.pipeline.columns import COLUMNS
from twinbus.pipeline.properties import VALUE_PARSERS
from twinbus.pipeline.source.options import DEFAULT_PREFETCH, OPTION_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from pyspark.sql import SparkSession

    from tests.pipeline.source.message_feed import MessageFeed

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-source.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_do_what_is_said(
    spark: SparkSession, feed: MessageFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def the_session_of_these_tests(_name: str, **_options: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("twinbus.pipeline.spark.session", the_session_of_these_tests)
    feed.server.create_entity("orders", "QueueDescription")
    feed.send("orders", 7)
    known = {"CONNECTION_STRING": feed.server.connection_string, "FOLDER": str(tmp_path)}
    for example in EXAMPLES:
        exec(compile(example, "docs/pipeline-source.md", "exec"), dict(known))  # noqa: S102  # ours
    assert {spark.read.parquet(str(tmp_path / name)).count() for name in ("orders", "archive")} == {7}
    assert feed.count("orders") == 0


def test_it_tells_every_option_column_and_type() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"type"} == {*OPTION_NAMES, *COLUMNS, *VALUE_PARSERS} - {"maxEventsPerTrigger"}
    assert "also `maxEventsPerTrigger`" in PAGE
    assert f"| `prefetchCount` | {DEFAULT_PREFETCH:,} |" in PAGE
