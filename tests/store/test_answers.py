"""Every call is answered once, in the order of the calls, and a commit only when it is on disk."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.rig import Rig


@pytest.mark.parametrize("seed", range(5))
def test_answers_come_in_the_order_of_the_calls(rig: Rig, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    told: list[int] = []

    def done(number: int, _answer: object) -> None:
        told.append(number)

    for number in range(200):
        answer = partial(done, number)
        kind = random.choice(("commit", "commit", "get", "scan", "checkpoint" if number % 50 == 0 else "commit"))
        if kind == "commit":
            batch = rig.store.batch()
            batch.put(b"%d" % number, b"")
            rig.store.commit(batch, answer)
        elif kind == "get":
            rig.store.get([b"1", b"2"], answer)
        elif kind == "scan":
            rig.store.scan(b"", b"\xff", answer, limit=10)
        else:
            rig.store.checkpoint(tmp_path / f"copy {number}", answer)
    rig.expect(rig.store.close)
    assert told == list(range(200))


def test_nothing_is_answered_before_the_call_returns(rig: Rig) -> None:
    told: list[object] = []
    rig.store.get([b"a"], told.append)
    rig.store.commit(rig.store.batch(), told.append)
    assert told == []


def test_a_commit_is_answered_after_its_sync(rig: Rig) -> None:
    for number in range(1, 4):
        rig.put((b"a", b"%d" % number))
        assert rig.store.syncs == number


def test_reads_need_no_sync(rig: Rig) -> None:
    rig.get(b"a")
    rig.scan()
    assert rig.store.syncs == 0


def test_a_commit_counts_as_waiting_until_it_is_answered(rig: Rig) -> None:
    for _ in range(3):
        rig.store.commit(rig.store.batch(), lambda _: None)
    assert rig.store.waiting == 3
    rig.get(b"a")
    assert rig.store.waiting == 0
    assert rig.store.busy_since is None
