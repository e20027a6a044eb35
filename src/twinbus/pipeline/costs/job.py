"""The job behind `twinbus pipeline costs`: from folders to a report, and to FOCUS rows.

Owns: the order of its steps, and that what Spark cannot do is told in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from twinbus.pipeline.costs.account import open_account
from twinbus.pipeline.costs.focus import focus_rows
from twinbus.pipeline.costs.report import make_report
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import first_line
from twinbus.pipeline.usage import read_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from twinbus.pipeline.costs.report import Report
    from twinbus.pipeline.costs.terms import Terms

_FILES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for."""

    usage: Sequence[str]
    """Servers' data folders."""
    journals: Sequence[str] = ()
    """Clients' journal folders."""
    terms: Terms
    parquet: str | None = None
    """Where FOCUS rows go: a folder that is not there yet, or a place that Spark knows."""


def explain(spark: SparkSession, wanted: Wanted, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Do all of it; `tell` is called with what is done next. PipelineError says what the user has to mend."""
    if wanted.parquet is not None and "://" not in wanted.parquet and Path(wanted.parquet).exists():
        raise PipelineError(f"{wanted.parquet} is there already: name a folder that is not")
    try:
        return _explain(spark, wanted, tell)
    except PySparkException as error:
        raise PipelineError(f"Spark gave up: {first_line(error)}") from error


def _explain(spark: SparkSession, wanted: Wanted, tell: Callable[[str], None]) -> Report:
    terms = wanted.terms
    tell("looking for usage")
    usage = read_usage(spark, wanted.usage, since=terms.since, until=terms.until)
    account = open_account(usage, terms, journals=wanted.journals, tell=tell)
    report = make_report(account)
    if wanted.parquet is not None:
        tell("writing FOCUS rows")
        focus_rows(account).coalesce(_FILES).write.parquet(wanted.parquet)
    return report
