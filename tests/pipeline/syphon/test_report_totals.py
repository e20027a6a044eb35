"""The report adds up the counts of attempts, rounds and lost tasks."""

from __future__ import annotations

from dataclasses import replace

from twinbus.client.pairing import EventKind, PairingEvent
from twinbus.pipeline.syphon import progress
from twinbus.pipeline.syphon.driver_connection import TaskId
from twinbus.pipeline.syphon.progress import OTHER_DESTINATIONS, MovedCount, TaskProgress
from twinbus.pipeline.syphon.report import Report, ReportRow, RoundCounts
from twinbus.pipeline.syphon.task import TaskResult

FIRST, AGAIN = TaskId(1, 0, 0), TaskId(1, 0, 1)
EVENT = PairingEvent(kind=EventKind.DEAD_LETTERED, at_ms=1_000, backlog_queue="two")


def row(
    queue: str, destination: str | None, moved: int, left: int | None, *, ended: str = "stopped", exact: bool = True
) -> ReportRow:
    return ReportRow(queue, destination, moved, 0, left, None, None, 1, exact, ended)


def counts(rows: list[ReportRow]) -> list[tuple[str, str | None, int, int]]:
    return [row[:4] for row in rows]


def test_a_task_counts_by_backlog_queue_and_destination() -> None:
    task = TaskProgress(["one", "two", "three"])
    task.count_moved("one", "orders", 1_000)
    task.count_moved("one", "orders", 2_000)
    task.count_moved("two", "invoices", 1_000)
    task.on_event(EVENT)
    assert task.rows() == [
        MovedCount("one", "orders", 2, 0, 1_000, 2_000),
        MovedCount("two", "invoices", 1, 0, 1_000, 1_000),
        MovedCount("two", None, 0, 1, 1_000, 1_000),
        MovedCount("three", None, 0, 0, None, None),
    ]


def test_only_changes_are_reported() -> None:
    task = TaskProgress(["one"])
    task.count_moved("one", "orders", 1_000)
    assert task.take_changes() == ([MovedCount("one", "orders", 1, 0, 1_000, 1_000)], {})
    assert task.take_changes() == ([], {})
    task.on_event(replace(EVENT, kind=EventKind.PUMP_FAILED, backlog_queue="one", reason="the primary is gone"))
    assert task.take_changes() == ([], {"one": "the primary is gone"})
    task.on_event(replace(EVENT, kind=EventKind.PUMP_STARTED, backlog_queue="one"))
    assert task.take_changes() == ([], {"one": ""})


def test_the_problem_of_a_destination_is_reported_until_its_messages_move() -> None:
    task = TaskProgress(["one"])
    refuses = replace(EVENT, kind=EventKind.DESTINATION_REFUSES, backlog_queue="one", path="orders", reason="disabled")
    task.on_event(refuses)
    task.on_event(replace(refuses, kind=EventKind.DEFERRED, reason=None))
    task.count_moved("one", "invoices", 1_000)
    assert task.take_changes()[1] == {"one": "'orders': disabled"}
    task.count_moved("one", "orders", 1_000)
    assert task.take_changes()[1] == {"one": ""}


def test_destinations_beyond_the_limit_are_counted_together() -> None:
    task = TaskProgress(["one"])
    for number in range(progress.MAX_DESTINATIONS + 5):
        task.count_moved("one", f"invented-{number}", 1_000)
    rows = task.rows()
    assert len(rows) == progress.MAX_DESTINATIONS + 1
    assert rows[-1] == MovedCount("one", OTHER_DESTINATIONS, 5, 0, 1_000, 1_000)


def test_the_last_report_of_a_lost_task_counts_and_is_marked_as_inexact() -> None:
    round_counts = RoundCounts([("one",), ("two",)])
    round_counts.update(FIRST, [MovedCount("one", "orders", 700, 0, 1_000, 2_000)], {})
    round_counts.update(AGAIN, [], {})
    other = TaskId(1, 1, 0)
    round_counts.update(other, [MovedCount("two", "orders", 5, 0, 1_000, 1_000)], {})
    round_counts.finish(
        [
            TaskResult(AGAIN, MovedCount("one", "orders", 300, 1, 3_000, 4_000)),
            TaskResult(other, MovedCount("two", "orders", 9, 0, 1_000, 5_000)),
        ]
    )
    assert round_counts.moved == 1_009
    one, two = round_counts.rows({"one": 0, "two": 0}, "stopped")
    assert (one.moved, one.dead_lettered, one.attempts, one.is_exact, one.end_reason) == (1_000, 1, 2, False, "empty")
    assert (two.moved, two.attempts, two.is_exact) == (9, 1, True)
    assert one.first_moved is not None
    assert one.last_moved is not None
    assert (one.first_moved.timestamp(), one.last_moved.timestamp()) == (1.0, 4.0)


def test_a_queue_that_is_not_empty_has_its_problem_or_the_end_reason() -> None:
    round_counts = RoundCounts([("one", "two", "three")])
    round_counts.update(FIRST, [], {"one": "'orders' is disabled"})
    round_counts.finish(
        [TaskResult(FIRST, MovedCount(queue, None, 0, 0, None, None)) for queue in ("one", "two", "three")]
    )
    rows = round_counts.rows({"one": 3, "two": 4}, "stopped")
    assert [(row.backlog_queue, row.left, row.end_reason) for row in rows] == [
        ("one", 3, "'orders' is disabled"),
        ("three", 0, "empty"),
        ("two", 4, "stopped"),
    ]
    assert [row.left for row in round_counts.rows(None, "stopped")] == [None, None, None]


def test_rounds_add_up_and_the_last_state_counts() -> None:
    report = Report()
    report.add_round([row("one", None, 0, 5)])
    assert counts(report.rows) == [("one", None, 0, 0)]
    report.add_round([row("one", "orders", 3, 2)])
    report.add_round([row("one", "invoices", 2, 0, ended="empty", exact=False)])
    assert counts(report.rows) == [("one", "orders", 3, 0), ("one", "invoices", 2, 0)]
    assert {(one.left, one.attempts, one.is_exact, one.end_reason) for one in report.rows} == {(0, 3, False, "empty")}
    assert (report.moved, report.left) == (5, 0)


def test_the_number_left_is_unknown_if_one_queue_could_not_be_counted() -> None:
    report = Report()
    report.add_round([row("one", "orders", 3, 2), row("two", None, 0, None)])
    assert report.left is None
