"""docs/pipeline-source.md: its examples run unchanged, in order, and its tables are complete."""

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


def test_the_examples_read_and_complete_all_messages(
    spark: SparkSession, feed: MessageFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def shared_session(_name: str, **_options: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("twinbus.pipeline.spark.session", shared_session)
    feed.server.create_entity("orders", "QueueDescription")
    feed.send("orders", 7)
    names = {"CONNECTION_STRING": feed.server.connection_string, "FOLDER": str(tmp_path)}
    for example in EXAMPLES:
        exec(compile(example, "docs/pipeline-source.md", "exec"), dict(names))  # noqa: S102  # our own page
    assert {spark.read.parquet(str(tmp_path / name)).count() for name in ("orders", "archive")} == {7}
    assert feed.count("orders") == 0


def test_every_option_column_and_type_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented - {"type"} == {*OPTION_NAMES, *COLUMNS, *VALUE_PARSERS} - {"maxEventsPerTrigger"}
    assert "also `maxEventsPerTrigger`" in PAGE
    assert f"| `prefetchCount` | {DEFAULT_PREFETCH:,} |" in PAGE
