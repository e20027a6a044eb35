"""Write stalls of RocksDB: the store waits and retries; a stall is not a failure and loses nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tests.store.store_harness import RocksHarness
from twinbus.store import rocks as module
from twinbus.store.rocks import WriteStall
from twinbus.store.rocks_tuning import RocksTuning

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TINY = RocksTuning(write_buffer_bytes=65_536, write_buffers=2, level0_slowdown_files=4, level0_stop_files=5)


def test_a_stalled_write_is_retried_and_applied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = 0
    wait = WriteStall.wait

    def count(stall: WriteStall) -> None:
        nonlocal waits
        waits += 1
        wait(stall)

    monkeypatch.setattr(WriteStall, "wait", count)
    harness = RocksHarness(tmp_path / "store", TINY)
    results: list[object] = []
    for number in range(400):
        batch = harness.store.batch()
        batch.put(b"%04d" % number, bytes(16_384))
        batch.delete(b"%04d" % (number - 100))
        harness.store.commit(batch, results.append)
    while len(results) < 400:
        harness.run_callbacks()
    assert waits > 0
    assert results == [None] * 400
    assert harness.store.commits == 400
    assert [int(key) for key, _ in harness.scan(max_bytes=1 << 30)] == list(range(300, 400))
    harness.call_successfully(harness.store.close)


class Time:
    """A clock that advances by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s


def test_a_long_stall_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    monkeypatch.setattr(module, "time", time)
    stall = WriteStall("store 0")
    with caplog.at_level(logging.WARNING):
        while time.now < 0.9:
            stall.wait()
        assert not caplog.records
        while time.now < 5.0:
            stall.wait()
    assert len(caplog.records) == 1
    assert "store 0" in caplog.text
    assert time.pauses[:3] == [0.001, 0.002, 0.004]
    assert max(time.pauses) == 0.050
