"""A store that fails once answers everything with that error, until a new one is opened on what the disk holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.store.protocol import StoreFailed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.store.rig import Rig


def test_a_failed_sync_fails_every_commit_that_shared_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.fail_next_sync(monkeypatch)
    told: list[Any] = []
    for number in range(3):
        batch = rig.store.batch()
        batch.put(b"%d" % number, b"")
        rig.store.commit(batch, told.append)
    assert isinstance(rig.ask(lambda done: rig.store.get([b"1"], done)), StoreFailed)
    assert [type(answer) for answer in told] == [StoreFailed] * 3
    assert "store 0" in str(told[0])
    assert "No space left" in str(told[0])
    assert rig.store.waiting == 0


def test_from_then_on_every_call_gets_the_same_error(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rig.fail_next_sync(monkeypatch)
    error = rig.ask(lambda done: rig.store.commit(rig.store.batch(), done))
    assert isinstance(error, StoreFailed)
    assert rig.store.failure is error
    assert rig.ask(lambda done: rig.store.commit(rig.store.batch(), done)) is error
    assert rig.ask(lambda done: rig.store.get([b"a"], done)) is error
    assert rig.ask(lambda done: rig.store.scan(b"", b"\xff", done, limit=1)) is error
    assert rig.ask(lambda done: rig.store.checkpoint(tmp_path / "copy", done)) is error
    assert rig.store.syncs == 0


def test_what_was_answered_before_is_there_when_it_is_opened_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put((b"accepted", b""))
    rig.fail_next_sync(monkeypatch)
    batch = rig.store.batch()
    batch.put(b"unknown", b"")
    batch.put(b"unknown too", b"")
    assert isinstance(rig.ask(lambda done: rig.store.commit(batch, done)), StoreFailed)
    rig.reopen()
    assert rig.get(b"accepted") == [b""]
    assert len(rig.scan()) in {1, 3}
    rig.put((b"works again", b""))


def test_a_failed_store_is_closed_without_error_and_keeps_its_own_afterwards(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.fail_next_sync(monkeypatch)
    error = rig.ask(lambda done: rig.store.commit(rig.store.batch(), done))
    assert rig.ask(rig.store.close) is None
    assert rig.ask(rig.store.close) is None
    assert rig.ask(lambda done: rig.store.get([b"a"], done)) is error
