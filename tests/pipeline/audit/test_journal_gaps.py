"""Gaps in the evidence of journals are found from their files, and from their start, end and loss rows."""

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


def facts(minute: int, **overrides: Any) -> JournalFileFacts:  # noqa: ANN401
    """Return the facts of a file that starts at `minute` and has rows for ten minutes."""
    first = NOON + minute * MINUTE
    defaults: dict[str, Any] = {
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
    return JournalFileFacts(**defaults | overrides)


def gaps(
    files: dict[JournalFile, JournalFileFacts | None], up_to_date: dict[str, dt.datetime] | None = None
) -> list[EvidenceGap]:
    facts_by_name = {file.path.name: file_facts for file, file_facts in files.items() if file_facts is not None}
    return find_gaps(group_by_run(list(files), facts_by_name), NOON + 600 * MINUTE, up_to_date or {})


def test_a_complete_journal_has_no_gap() -> None:
    assert gaps({file(1): facts(0), file(2): facts(60, has_start_row=False, has_end_row=True)}) == []


def test_a_journal_without_an_end_is_a_gap_of_some_minutes_for_its_receivers() -> None:
    (gap,) = gaps({file(1, is_ended=False): facts(0)})
    assert (gap.entity, gap.since, gap.until) == ("orders", NOON + 10 * MINUTE, NOON + 15 * MINUTE)
    assert "did not end" in gap.reason


def test_a_journal_without_receivers_has_no_gap() -> None:
    assert gaps({file(1, is_ended=False): facts(0, received_from=frozenset())}) == []


def test_a_live_journal_has_no_gap_before_its_last_sign_of_life() -> None:
    (gap,) = gaps({file(1, is_ended=False): facts(0)}, up_to_date={"1-a": NOON + 12 * MINUTE})
    assert find_latest_gap([gap], ["orders"], NOON + 11 * MINUTE) is None
    assert find_latest_gap([gap], ["orders"], NOON + 13 * MINUTE) is gap


def test_lost_rows_are_a_gap_up_to_the_row_that_counts_them() -> None:
    (gap,) = gaps({file(1): facts(0, last_loss_time=NOON + 7 * MINUTE, lost_rows=1_234, has_end_row=True)})
    assert (gap.entity, gap.until) == ("orders", NOON + 7 * MINUTE)
    assert "lost 1,234 rows" in gap.reason


@pytest.mark.parametrize("parts", [(1, 3), (2, 3)])
def test_a_missing_file_is_a_gap_for_all_entities_up_to_the_next_file(parts: tuple[int, int]) -> None:
    files: dict[JournalFile, JournalFileFacts | None] = {file(part): facts(60 * part) for part in parts[:1]}
    files[file(parts[1])] = facts(60 * parts[1], has_end_row=True)
    (gap,) = gaps(files)
    next_part = 3 if parts == (1, 3) else 2
    assert (gap.entity, gap.since, gap.until) == (ANY_ENTITY, MIN_TIME, NOON + 60 * next_part * MINUTE)
    assert "is missing" in gap.reason


def test_a_missing_last_file_is_a_gap_for_all_entities_from_then_on() -> None:
    (gap,) = gaps({file(1): facts(0), file(2): facts(60, has_start_row=False)})
    assert (gap.entity, gap.since, gap.until) == (ANY_ENTITY, NOON + 70 * MINUTE, NOON + 600 * MINUTE)
    assert "file 3 of journal 1-a is missing" in gap.reason


def test_missing_first_and_last_files_are_not_mistaken_for_a_journal_of_version_1() -> None:
    found_gaps = gaps({file(2): facts(60, has_start_row=False)})
    assert max(gap.until for gap in found_gaps) == NOON + 600 * MINUTE


def test_a_file_without_rows_is_not_missing() -> None:
    assert gaps({file(1): facts(0), file(2, is_ended=False): None, file(3): facts(60, has_end_row=True)}) == []


def test_a_journal_without_rows_is_a_gap_for_all_entities() -> None:
    (gap,) = gaps({file(1, is_ended=False): None})
    assert (gap.entity, gap.until) == (ANY_ENTITY, NOON + 600 * MINUTE)


def test_a_journal_of_version_1_has_no_gap_if_its_last_file_has_an_end() -> None:
    assert gaps({file(1): facts(0, has_start_row=False)}) == []
    (gap,) = gaps({file(1, is_ended=False): facts(0, has_start_row=False)})
    assert (gap.entity, gap.until) == (ANY_ENTITY, NOON + 600 * MINUTE)


def test_a_bulk_deletion_is_a_gap_up_to_its_time() -> None:
    file_facts = [facts(0, bulk_settlements=frozenset({("orders", NOON + 3 * MINUTE)}))]
    (gap,) = bulk_gaps(file_facts)
    assert (gap.entity, gap.since, gap.until) == ("orders", MIN_TIME, NOON + 3 * MINUTE)


def test_the_latest_gap_counts() -> None:
    candidates = [
        EvidenceGap("orders", NOON, NOON + MINUTE, "a"),
        EvidenceGap(ANY_ENTITY, NOON, NOON + 5 * MINUTE, "b"),
        EvidenceGap("x", NOON, NOON, "c"),
    ]
    chosen = find_latest_gap(candidates, ["orders", "orders/$deadletterqueue"], NOON + 9 * MINUTE)
    assert chosen is candidates[1]


def test_the_audit_waits_for_live_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.02)
    monkeypatch.setattr(journal_module, "ALIVE_INTERVAL_S", 0.1)
    killed = Journal(tmp_path)
    killed.close_now()
    (path,) = tmp_path.iterdir()
    truncate_journal(path)
    live, is_waiting = Journal(tmp_path), threading.Event()
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1)
    before = dt.datetime.now(dt.UTC)
    up_to_date = wait_for_live_journals([tmp_path], 3.0, lambda _: is_waiting.set())
    live.close_now()
    (last_time,) = up_to_date.values()
    assert before <= last_time <= dt.datetime.now(dt.UTC)
    assert is_waiting.is_set()
    assert path.name.split("-", 1)[1].rsplit("-", 1)[0] not in up_to_date
