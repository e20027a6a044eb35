"""Usage rows summed by period and split into one row per kind of operation.

Owns the usage columns of each kind, the charges for each kind in the two models, and the properties derived from an
entity's path. Everything runs inside Spark. The results of `sum_usage` are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.annotations import BACKLOG_QUEUE_INFIX
from twinbus.model.usage import COUNTS, END, LOST
from twinbus.pipeline.costs.charges import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Period(Enum):
    """Length of the period that a row covers."""

    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationKind:
    """A kind of operation, and the usage columns that count it."""

    name: str
    document_columns: tuple[str, ...] = ()
    """Columns charged in the document's model."""
    operation_columns: tuple[str, ...] = ()
    """Columns charged in the operation model."""
    failed_columns: tuple[str, ...] = ()
    """Columns charged in both models if failed calls are charged."""
    messages_column: str | None = None
    bytes_column: str | None = None
    stage: Stage
    backlog_stage: Stage
    """Stage of operations at a backlog queue; `stage` applies to operations at other entities."""


OPERATION_KINDS: Final = (
    OperationKind(
        name="send",
        document_columns=("send_units",),
        operation_columns=("send_units", "schedules"),
        failed_columns=("failed_sends",),
        messages_column="sends",
        bytes_column="send_bytes",
        stage=Stage.NOT_PARKED,
        backlog_stage=Stage.SEND_TO_BACKLOG,
    ),
    OperationKind(
        name="receive",
        document_columns=("receive_units",),
        operation_columns=("receive_units", "settlements", "renewals", "session_calls"),
        messages_column="receives",
        bytes_column="receive_bytes",
        stage=Stage.NOT_PARKED,
        backlog_stage=Stage.RECEIVE_FROM_BACKLOG,
    ),
    OperationKind(
        name="empty receive",
        document_columns=("empty_receives",),
        operation_columns=("empty_receives",),
        messages_column="empty_receives",
        stage=Stage.EMPTY,
        backlog_stage=Stage.IDLE_SYPHON,
    ),
    OperationKind(
        name="ping",
        document_columns=("pings",),
        operation_columns=("pings",),
        failed_columns=("failed_pings",),
        messages_column="pings",
        stage=Stage.PING,
        backlog_stage=Stage.PING,
    ),
    OperationKind(
        name="management",
        operation_columns=("management", "peeks"),
        stage=Stage.MANAGEMENT,
        backlog_stage=Stage.MANAGEMENT,
    ),
    OperationKind(
        name="forward",
        operation_columns=("forwards",),
        messages_column="forwards",
        stage=Stage.OTHER,
        backlog_stage=Stage.OTHER,
    ),
)
IS_BACKLOG: Final = rf"entity RLIKE '(?i)^[^/]+/{BACKLOG_QUEUE_INFIX}/[0-9]+$'"
ROOT_EXPRESSION: Final = r"lower(regexp_replace(entity, '(?i)/(subscriptions/|[$]).*$', ''))"
"""The queue or topic that a subscription or a dead-letter queue belongs to, in lower case."""
IS_SUBQUEUE: Final = r"contains(entity, '/$')"
IS_NAMESPACE_ROW: Final = "entity = '' AND client = ''"
"""A row for the namespace itself, which each server process writes every minute."""
GROUP_KEY: Final = ("period", "namespace", "entity", "client")
_PERIOD_SECONDS: Final = {Period.DAY: 86_400, Period.HOUR: 3_600}


def sum_usage(usage: DataFrame, period: Period) -> DataFrame:
    """Sum usage by period. Rows for the namespaces themselves are summed by minute.

    `sum_usage` is the only pass over all rows. `begun` is the number of the period or minute since 1970, and `peak` is
    the highest number of connections. `has_ended` and `has_lost` say whether a row has the mark `end` or `lost`.
    """
    from pyspark.sql import functions  # noqa: PLC0415  # not needed for a prediction

    # Integer arithmetic is used, because functions that handle time zones take longer than the whole sum.
    length = f"IF({IS_NAMESPACE_ROW}, 60L, {_PERIOD_SECONDS[period]}L)"
    keyed = usage.selectExpr(
        f"unix_seconds(minute) div {length} AS begun",
        "namespace",
        "entity",
        "client",
        f"IF({IS_NAMESPACE_ROW}, process, -1L) AS process",
        f"IF({IS_NAMESPACE_ROW}, life, '') AS life",
        "mark",
        *COUNTS,
    )
    return keyed.groupBy("begun", *GROUP_KEY[1:], "process", "life").agg(
        *(functions.sum(name).alias(name) for name in _SUMMED_COLUMNS),
        functions.max("connections").alias("peak"),
        functions.expr(f"max(mark = '{END}') AS has_ended"),
        functions.expr(f"max(mark = '{LOST}') AS has_lost"),
    )


def sum_by_period(usage_sums: DataFrame, period: Period) -> DataFrame:
    """Sum by period, namespace, entity and client."""
    seconds = _PERIOD_SECONDS[period]
    begun = f"IF({IS_NAMESPACE_ROW}, begun * 60 div {seconds}, begun) AS begun"
    # A namespace has its own row for each minute, and most of these rows contain only zeros.
    has_any = f"NOT ({IS_NAMESPACE_ROW}) OR greatest({', '.join(_SUMMED_COLUMNS)}) > 0"
    summed = (
        usage_sums.where(has_any)
        .selectExpr(begun, *GROUP_KEY[1:], *_SUMMED_COLUMNS)
        .groupBy("begun", *GROUP_KEY[1:])
        .sum(*_SUMMED_COLUMNS)
    )
    columns = [f"coalesce(`sum({name})`, 0) AS {name}" for name in _SUMMED_COLUMNS]
    return summed.selectExpr(f"timestamp_seconds(begun * {seconds}) AS period", *GROUP_KEY[1:], *columns)


def split_by_kind(period_sums: DataFrame, *, bills_failed: bool) -> DataFrame:
    """Split sums into one row per kind of operation, with the charges in both models."""
    kinds = ", ".join(_kind_struct(kind, bills_failed=bills_failed) for kind in OPERATION_KINDS)
    return period_sums.selectExpr(
        *GROUP_KEY,
        "date_trunc('MONTH', period) AS month",
        f"{IS_BACKLOG} AS is_backlog",
        f"{IS_SUBQUEUE} AS is_subqueue",
        f"{ROOT_EXPRESSION} AS root",
        f"inline(array({kinds}))",
    ).where("document > 0 OR operation > 0")


def _kind_struct(kind: OperationKind, *, bills_failed: bool) -> str:
    failed = kind.failed_columns if bills_failed else ()
    stage = f"IF({IS_BACKLOG}, '{kind.backlog_stage.value}', '{kind.stage.value}')"
    message_columns = (
        (kind.messages_column, *kind.failed_columns)
        if kind.name == "ping" and kind.messages_column
        else (kind.messages_column,)
    )
    fields = {
        "kind": f"'{kind.name}'",
        "stage": stage,
        "document": _sum_expression(kind.document_columns + failed),
        "operation": _sum_expression(kind.operation_columns + failed),
        "messages": _sum_expression(tuple(name for name in message_columns if name is not None)),
        "bytes": kind.bytes_column or "0L",
    }
    pairs = [f"'{name}', {value}" for name, value in fields.items()]
    return f"named_struct({', '.join(pairs)})"


def _sum_expression(columns: tuple[str, ...]) -> str:
    return " + ".join(columns) or "0L"


_SUMMED_COLUMNS: Final = tuple(name for name in COUNTS if name != "connections")
"""Summed columns: all counts except connections, for which `server_activity` uses hourly peaks."""
