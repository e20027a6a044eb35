"""Rows of usage, summed by period, and taken apart by what was done: a row for each kind of operation.

Owns: which column of usage is of which kind, what a kind counts in each of the two models, and what a path tells of an
entity. All of it runs inside Spark; what follows `one_pass` is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.annotations import BACKLOG_QUEUES
from twinbus.model.usage import COUNTS, END, LOST
from twinbus.pipeline.costs.charges import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Period(Enum):
    """What a row of the outcome is about."""

    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Of operations."""

    name: str
    document: tuple[str, ...] = ()
    """Columns whose sum is charged in the document's model."""
    operation: tuple[str, ...] = ()
    """... and in the operation model."""
    failed: tuple[str, ...] = ()
    """... in both, if failed calls are charged."""
    messages: str | None = None
    size: str | None = None
    stage: Stage
    backlog_stage: Stage
    """The same, of a backlog queue."""


KINDS: Final = (
    Kind(
        name="send",
        document=("send_units",),
        operation=("send_units", "schedules"),
        failed=("failed_sends",),
        messages="sends",
        size="send_bytes",
        stage=Stage.NOT_PARKED,
        backlog_stage=Stage.SEND_TO_BACKLOG,
    ),
    Kind(
        name="receive",
        document=("receive_units",),
        operation=("receive_units", "settlements", "renewals", "session_calls"),
        messages="receives",
        size="receive_bytes",
        stage=Stage.NOT_PARKED,
        backlog_stage=Stage.RECEIVE_FROM_BACKLOG,
    ),
    Kind(
        name="empty receive",
        document=("empty_receives",),
        operation=("empty_receives",),
        messages="empty_receives",
        stage=Stage.EMPTY,
        backlog_stage=Stage.IDLE_SYPHON,
    ),
    Kind(
        name="ping",
        document=("pings",),
        operation=("pings",),
        failed=("failed_pings",),
        messages="pings",
        stage=Stage.PING,
        backlog_stage=Stage.PING,
    ),
    Kind(
        name="management",
        operation=("management", "peeks"),
        stage=Stage.MANAGEMENT,
        backlog_stage=Stage.MANAGEMENT,
    ),
    Kind(name="forward", operation=("forwards",), messages="forwards", stage=Stage.OTHER, backlog_stage=Stage.OTHER),
)
IS_BACKLOG: Final = rf"entity RLIKE '(?i)^[^/]+/{BACKLOG_QUEUES}/[0-9]+$'"
ROOT: Final = r"lower(regexp_replace(entity, '(?i)/(subscriptions/|[$]).*$', ''))"
"""The queue or topic that a subscription or a dead-letter queue is of; paths differ by more than case."""
IS_SUBQUEUE: Final = r"contains(entity, '/$')"
IS_OWN: Final = "entity = '' AND client = ''"
"""A row of a namespace itself: each of its processes writes one each minute."""
BY: Final = ("period", "namespace", "entity", "client")
_SECONDS: Final = {Period.DAY: 86_400, Period.HOUR: 3_600}


def one_pass(usage: DataFrame, period: Period) -> DataFrame:
    """The only look at all rows: sums of each period; and, of the rows of the namespaces themselves, each minute.

    `begun` counts periods, or minutes; `peak` is the highest number of connections, and `has_ended` and `has_lost` are
    the marks.
    """
    from pyspark.sql import functions  # noqa: PLC0415  # a prediction does without

    # Whole numbers: what knows of time zones takes longer than all of the sum.
    length = f"IF({IS_OWN}, 60L, {_SECONDS[period]}L)"
    keyed = usage.selectExpr(
        f"unix_seconds(minute) div {length} AS begun",
        "namespace",
        "entity",
        "client",
        f"IF({IS_OWN}, process, -1L) AS process",
        f"IF({IS_OWN}, life, '') AS life",
        "mark",
        *COUNTS,
    )
    return keyed.groupBy("begun", *BY[1:], "process", "life").agg(
        *(functions.sum(name).alias(name) for name in _SUMMED),
        functions.max("connections").alias("peak"),
        functions.expr(f"max(mark = '{END}') AS has_ended"),
        functions.expr(f"max(mark = '{LOST}') AS has_lost"),
    )


def sums(passed: DataFrame, period: Period) -> DataFrame:
    """Of each period, namespace, entity and client."""
    seconds = _SECONDS[period]
    begun = f"IF({IS_OWN}, begun * 60 div {seconds}, begun) AS begun"
    # Of the namespaces' own rows there is one a minute, and next to none of them has anything to add.
    has_any = f"NOT ({IS_OWN}) OR greatest({', '.join(_SUMMED)}) > 0"
    summed = passed.where(has_any).selectExpr(begun, *BY[1:], *_SUMMED).groupBy("begun", *BY[1:]).sum(*_SUMMED)
    columns = [f"coalesce(`sum({name})`, 0) AS {name}" for name in _SUMMED]
    return summed.selectExpr(f"timestamp_seconds(begun * {seconds}) AS period", *BY[1:], *columns)


def by_kind(summed: DataFrame, *, bills_failed: bool) -> DataFrame:
    """A row for each kind that there was: period, namespace, entity, client, and what is charged of it."""
    kinds = ", ".join(_struct(kind, bills_failed=bills_failed) for kind in KINDS)
    return summed.selectExpr(
        *BY,
        "date_trunc('MONTH', period) AS month",
        f"{IS_BACKLOG} AS is_backlog",
        f"{IS_SUBQUEUE} AS is_subqueue",
        f"{ROOT} AS root",
        f"inline(array({kinds}))",
    ).where("document > 0 OR operation > 0")


def _struct(kind: Kind, *, bills_failed: bool) -> str:
    failed = kind.failed if bills_failed else ()
    stage = f"IF({IS_BACKLOG}, '{kind.backlog_stage.value}', '{kind.stage.value}')"
    counted = (kind.messages, *kind.failed) if kind.name == "ping" and kind.messages else (kind.messages,)
    fields = {
        "kind": f"'{kind.name}'",
        "stage": stage,
        "document": _sum(kind.document + failed),
        "operation": _sum(kind.operation + failed),
        "messages": _sum(tuple(name for name in counted if name is not None)),
        "bytes": kind.size or "0L",
    }
    pairs = [f"'{name}', {value}" for name, value in fields.items()]
    return f"named_struct({', '.join(pairs)})"


def _sum(columns: tuple[str, ...]) -> str:
    return " + ".join(columns) or "0L"


_SUMMED: Final = tuple(name for name in COUNTS if name != "connections")
"""Connections are not summed: of them the highest number counts (`pulse`)."""
