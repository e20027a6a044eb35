"""Backlog queues are spread over tasks, and the epoch of an exclusive receiver shows which syphon is newer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pipeline.syphon.assignment import Assignment, DriverAddress, Pair, spread_queues


def assignment(*, started_ms: int = 1_000_000, number: int = 1, queues: tuple[str, ...] = ()) -> Assignment:
    return Assignment(
        pair=Pair(
            primary_connection_string="key of one",
            secondary_connection_string="key of other",
            admin_connection_string="key of admin",
            primary_name="contoso",
        ),
        backlog_queues=queues,
        driver_address=DriverAddress(host="127.0.0.1", port=1, token="a token"),
        round=number,
        group=0,
        driver_started_ms=started_ms,
        poll_s=900.0,
        deduct=False,
        journal_dir=None,
    )


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 10_000), min_size=1), st.integers(1, 20))
def test_each_backlog_queue_has_one_task_and_no_task_is_empty(parked: dict[str, int], tasks: int) -> None:
    groups = spread_queues(parked, tasks)
    assert sorted(queue for group in groups for queue in group) == sorted(parked)
    assert len(groups) == min(tasks, len(parked))
    assert all(groups)


def test_tasks_have_about_the_same_number_of_messages() -> None:
    parked = {"a": 900, "b": 500, "c": 400, "d": 0, "e": 0}
    weights = sorted(sum(parked[queue] for queue in group) for group in spread_queues(parked, 2))
    assert weights == [900, 900]


def test_idle_queues_are_spread_evenly() -> None:
    groups = spread_queues({str(number): 0 for number in range(10)}, 4)
    assert sorted(map(len, groups)) == [2, 2, 3, 3]


def test_a_restarted_task_has_a_higher_epoch_than_the_lost_task_and_earlier_rounds() -> None:
    epochs = [assignment(number=number).epoch(attempt) for number in (1, 2, 3) for attempt in (0, 1, 7)]
    assert epochs == sorted(set(epochs))


def test_a_later_driver_has_a_higher_epoch_than_a_restarted_task_of_an_earlier_one() -> None:
    """A driver that starts an hour, and four rounds, after another one takes its queues and keeps them (Q17)."""
    an_hour_later = assignment(started_ms=1_000_000 + 3_600_000)
    assert assignment(number=5).epoch(7) < an_hour_later.epoch(0)


def test_an_assignment_shows_no_secrets() -> None:
    shown = repr(assignment())
    assert "contoso" in shown
    assert "key of" not in shown
    assert "a token" not in shown
