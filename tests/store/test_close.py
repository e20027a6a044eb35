"""Closing answers what was asked before; nothing that was answered is missing afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.store.protocol import StoreClosed, Table

if TYPE_CHECKING:
    from tests.store.rig import Rig


def test_close_comes_after_what_was_asked_before(rig: Rig) -> None:
    told: list[Any] = []
    batch = rig.store.batch()
    batch.put(b"a", b"1")
    rig.store.commit(batch, told.append)
    rig.store.get([b"a"], told.append)
    assert rig.ask(rig.store.close) is None
    assert told == [None, [b"1"]]


def test_calls_after_close_are_answered_in_order_with_store_closed(rig: Rig) -> None:
    told: list[Any] = []
    rig.store.get([b"a"], told.append)
    rig.store.close(told.append)
    rig.store.get([b"a"], told.append)
    rig.store.commit(rig.store.batch(), told.append)
    rig.store.close(told.append)
    while len(told) < 5:
        rig.turn()
    assert told[:2] == [[None], None]
    assert [type(answer) for answer in told[2:]] == [StoreClosed, StoreClosed, type(None)]
    assert "store 0" in str(told[2])
    assert isinstance(rig.ask(lambda done: rig.store.get([b"a"], done)), StoreClosed)
    assert rig.ask(rig.store.close) is None
    assert rig.store.waiting == 0


def test_what_was_committed_is_there_after_a_reopening(rig: Rig) -> None:
    rig.put((b"a", b"log"))
    rig.put((b"a", b"index"), table=Table.INDEX)
    rig.reopen()
    assert rig.scan() == [(b"a", b"log")]
    assert rig.scan(table=Table.INDEX) == [(b"a", b"index")]


def test_what_was_answered_is_there_after_a_kill(rig: Rig) -> None:
    for number in range(50):
        rig.put((b"%02d" % number, bytes(100)))
    rig.kill()
    assert len(rig.scan()) == 50
