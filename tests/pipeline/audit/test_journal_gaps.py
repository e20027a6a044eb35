"""What journals do not tell is found: by their files, and by what they say of themselves."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.audit.audit_inputs import truncate_journal
from tests.support.server_process import wait_until
from twinbus.client import journal as journal_module
from twinbus.client.journal import Journal
from twinbus.pipeline.audit.journal_gaps import (
    ANY_ENTITY,
    MIN_TIME,
    EvidenceGap,
    JournalFileFacts,
    bulk_gaps,
    find_gaps,
    find_latest_gap,
    group_by_run,
    wait_for_live_journals,
)
from twinbus.pipeline.journals import JournalFile

NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


def file(part: int, *, is_ended: bool = True, life: str = "1-a") -> JournalFile:
    return JournalFile(Path(f"20261117T{part:02d}Z-{life}-{part}.arrows"), life, part, 100, is_ended)


def facts(minute: int, **about: Any) -> JournalFileFacts:  # noqa: ANN401
    """Of a file that begins then, and has rows for ten minutes."""
    first = NOON + minute * MINUTE
    given: dict[str, Any] = {
        "first_time": first,
        "last_time": first + 10 * MINUTE,
        "last_loss_time": None,
        "lost_rows": 0,
        "has_start_row": True,
        "has_end_row": False,
        "has_sends": True,
        "has_transactions": False,
        "has_cancellations": False,
        "received_from": frozenset({"orders"}),
        "bulk_settlements": frozenset(),
    }
    return JournalFileFacts(**given | about)


def gaps(
    files: dict[JournalFile, JournalFileFacts | None], up_to_date: dict[str, dt.datetime] | None = None
) -> list[EvidenceGap]:
    found = {one.path.name: told for one, told in files.items() if told is not None}
    return find_gaps(group_by_run(list(files), found), NOON + 600 * MINUTE, up_to_date or {})


def test_a_journal_that_began_and_ended_has_no_gap() -> None:
    assert gaps({file(1): facts(0), file(2): facts(60, has_start_row=False, has_end_row=True)}) == []


def test_one_without_an_end_hides_what_its_receivers_did_for_some_minutes() -> None:
    (gap,) = gaps({file(1, is_ended=False): facts(0)})
    assert (gap.entity, gap.since, gap.until) == ("orders", NOON + 10 * MINUTE, NOON + 15 * MINUTE)
    assert "has no end" in gap.reason


def test_one_that_has_no_receivers_hides_nothing() -> None:
    assert gaps({file(1, is_ended=False): facts(0, received_from=frozenset())}) == []


def test_one_that_goes_on_hides_nothing_from_before_it_was_heard_of() -> None:
    (gap,) = gaps({file(1, is_ended=False): facts(0)}, up_to_date={"1-a": NOON + 12 * MINUTE})
    assert find_latest_gap([gap], ["orders"], NOON + 11 * MINUTE) is None
    assert find_latest_gap([gap], ["orders"], NOON + 13 * MINUTE) is gap


def test_rows_that_were_lost_hide_what_was_done_before_they_were_counted() -> None:
    (gap,) = gaps({file(1): facts(0, last_loss_time=NOON + 7 * MINUTE, lost_rows=1_234, has_end_row=True)})
    assert (gap.entity, gap.until) == ("orders", NOON + 7 * MINUTE)
    assert "lost 1,234 rows" in gap.reason


@pytest.mark.parametrize("parts", [(1, 3), (2, 3)])
def test_a_missing_file_hides_what_was_done_anywhere_before_the_next(parts: tuple[int, int]) -> None:
    files: dict[JournalFile, JournalFileFacts | None] = {file(part): facts(60 * part) for part in parts[:1]}
    files[file(parts[1])] = facts(60 * parts[1], has_end_row=True)
    (gap,) = gaps(files)
    hidden = 3 if parts == (1, 3) else 2
    assert (gap.entity, gap.since, gap.until) == (ANY_ENTITY, MIN_TIME, NOON + 60 * hidden * MINUTE)
    assert "is missing" in gap.reason


def test_a_last_file_that_was_closed_for_another_hides_what_was_done_anywhere_since() -> None:
    (gap,) = gaps({file(1): facts(0), file(2): facts(60, has_start_row=False)})
    assert (gap.entity, gap.since, gap.until) == (ANY_ENTITY, NOON + 70 * MINUTE, NOON + 600 * MINUTE)
    assert "file 3 of journal 1-a is missing" in gap.reason


def test_one_whose_first_and_last_files_are_missing_is_not_taken_for_one_of_the_first_version() -> None:
    found = gaps({file(2): facts(60, has_start_row=False)})
    assert max(gap.until for gap in found) == NOON + 600 * MINUTE


def test_a_file_that_a_full_disk_left_without_rows_is_not_missing() -> None:
    assert gaps({file(1): facts(0), file(2, is_ended=False): None, file(3): facts(60, has_end_row=True)}) == []


def test_a_journal_without_a_row_hides_everything() -> None:
    (gap,) = gaps({file(1, is_ended=False): None})
    assert (gap.entity, gap.until) == (ANY_ENTITY, NOON + 600 * MINUTE)


def test_one_of_the_first_version_is_believed_if_its_last_file_has_an_end() -> None:
    assert gaps({file(1): facts(0, has_start_row=False)}) == []
    (gap,) = gaps({file(1, is_ended=False): facts(0, has_start_row=False)})
    assert (gap.entity, gap.until) == (ANY_ENTITY, NOON + 600 * MINUTE)


def test_what_is_deleted_in_bulk_hides_which_messages_these_were() -> None:
    told = [facts(0, bulk_settlements=frozenset({("orders", NOON + 3 * MINUTE)}))]
    (gap,) = bulk_gaps(told)
    assert (gap.entity, gap.since, gap.until) == ("orders", MIN_TIME, NOON + 3 * MINUTE)


def test_the_gap_that_hides_most_is_the_one_that_counts() -> None:
    some = [
        EvidenceGap("orders", NOON, NOON + MINUTE, "a"),
        EvidenceGap(ANY_ENTITY, NOON, NOON + 5 * MINUTE, "b"),
        EvidenceGap("x", NOON, NOON, "c"),
    ]
    chosen = find_latest_gap(some, ["orders", "orders/$deadletterqueue"], NOON + 9 * MINUTE)
    assert chosen is some[1]


def test_journals_that_are_written_to_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.02)
    monkeypatch.setattr(journal_module, "ALIVE_INTERVAL_S", 0.1)
    dead = Journal(tmp_path)
    dead.close_now()
    (path,) = tmp_path.iterdir()
    truncate_journal(path)
    living, is_waiting = Journal(tmp_path), threading.Event()
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1)
    before = dt.datetime.now(dt.UTC)
    found = wait_for_live_journals([tmp_path], 3.0, lambda _: is_waiting.set())
    living.close_now()
    (heard,) = found.values()
    assert before <= heard <= dt.datetime.now(dt.UTC)
    assert is_waiting.is_set()
    assert path.name.split("-", 1)[1].rsplit("-", 1)[0] not in found
