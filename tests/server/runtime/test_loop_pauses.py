"""Pauses of the event loop are measured, reported by `/health`, and reset on request."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.server.http.in_memory_administration import InMemoryAdministration
from twinbus.model.errors import Unauthorized
from twinbus.server.http.app import HttpApp
from twinbus.server.runtime import loop_pauses
from twinbus.server.runtime.loop_pauses import PROBE_INTERVAL_S, ClockReading, PauseMeter, ThreadClock

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping


class Handle:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """An event loop whose calls and clocks a test controls."""

    def __init__(self) -> None:
        self.clocks = ClockReading(100.0, 100.0, 100.0)
        self.handle = Handle()
        self._call: Callable[[], None]

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        assert delay_s == PROBE_INTERVAL_S
        self._call = call
        return self.handle

    def turn(self, late_ms: float = 0.0, worked_ms: float = 0.0, waited_ms: float = 0.0) -> None:
        now, worked, waited = self.clocks
        self.clocks = ClockReading(
            now + PROBE_INTERVAL_S + late_ms / 1000, worked + worked_ms / 1000, waited + waited_ms / 1000
        )
        self._call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def meter(loop: Loop) -> PauseMeter:
    meter = PauseMeter(cast("asyncio.AbstractEventLoop", loop), lambda: loop.clocks)
    meter.start()
    return meter


def test_the_longest_pause_is_kept(loop: Loop, meter: PauseMeter) -> None:
    for late_ms in (0, 30, 80, 60, 1):
        loop.turn(late_ms)
    summary = meter.summary()
    assert (summary["longest_ms"], summary["over_50_ms"], summary["measured_s"]) == (80.0, 2, 0.181)


def test_the_summary_has_the_times_of_long_pauses(loop: Loop, meter: PauseMeter) -> None:
    loop.turn(70, worked_ms=8, waited_ms=5)
    loop.turn(19)
    loop.turn(25)
    (first, second) = cast("list[list[float]]", meter.summary()["pauses"])
    assert first == pytest.approx([100 + PROBE_INTERVAL_S, 100 + PROBE_INTERVAL_S + 0.07, 0.005, 0.008])
    assert second[1] - second[0] == pytest.approx(0.025)
    meter.reset()
    assert meter.summary()["pauses"] == []


def test_the_number_of_listed_pauses_is_limited(loop: Loop, meter: PauseMeter) -> None:
    for _ in range(loop_pauses.MAX_KEPT_PAUSES + 5):
        loop.turn(30)
    assert len(cast("list[object]", meter.summary()["pauses"])) == loop_pauses.MAX_KEPT_PAUSES


def test_time_waiting_for_the_processor_is_not_an_own_pause(loop: Loop, meter: PauseMeter) -> None:
    for late_ms, worked_ms, waited_ms in ((90, 10, 80), (70, 20, 10), (1, 1, 5)):
        loop.turn(late_ms, worked_ms, waited_ms)
    summary = meter.summary()
    assert (summary["longest_ms"], summary["over_50_ms"]) == (90.0, 2)
    assert (summary["longest_own_ms"], summary["worked_in_that_ms"], summary["own_over_50_ms"]) == (60.0, 20.0, 1)


def test_pauses_are_counted_by_their_length(loop: Loop, meter: PauseMeter) -> None:
    for late_ms in (0, 1, 4, 49, 51, 120, 2_000):
        loop.turn(late_ms)
    counts = cast("dict[str, int]", meter.summary()["counts_by_ms"])
    assert counts == {
        "<= 2": 2,
        "<= 5": 1,
        "<= 10": 0,
        "<= 20": 0,
        "<= 50": 1,
        "<= 100": 1,
        "<= 200": 1,
        "<= 500": 0,
        "<= 1000": 0,
        "> 1000": 1,
    }


def test_a_reset_clears_all_pauses(loop: Loop, meter: PauseMeter) -> None:
    loop.turn(500)
    meter.reset()
    loop.turn(3)
    summary = meter.summary()
    assert summary["longest_ms"] == 3.0
    assert summary["over_50_ms"] == 0
    assert sum(cast("dict[str, int]", summary["counts_by_ms"]).values()) == 1


def test_stopping_cancels_the_probe(loop: Loop, meter: PauseMeter) -> None:
    meter.stop()
    assert loop.handle.is_cancelled


def test_a_blocking_call_is_measured_on_a_real_loop() -> None:
    async def run() -> dict[str, object]:
        meter = PauseMeter(asyncio.get_running_loop())
        meter.start()
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # noqa: ASYNC251  # blocks the loop on purpose
        await asyncio.sleep(0.02)
        meter.stop()
        return meter.summary()

    summary = asyncio.run(run())
    assert cast("float", summary["longest_ms"]) >= 95
    assert cast("float", summary["longest_own_ms"]) >= 80, "nobody else had the processor for all that time"
    assert cast("float", summary["worked_in_that_ms"]) < 50, "it slept"
    assert cast("int", summary["over_50_ms"]) >= 1


def test_without_schedstat_the_waiting_time_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_pauses, "SCHEDSTAT_FILE", "/nowhere")
    before, after = (clocks := ThreadClock())(), clocks()
    assert before.run_queue_s == after.run_queue_s == 0
    assert before.now_s < after.now_s


# --- over HTTP --------------------------------------------------------------------------------------------------------


def send_request(app: HttpApp, method: str, path: str) -> tuple[int, dict[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [(b"host", b"x")]}
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body) if body.startswith(b"{") else {}


def allow(_token: str | None, _right: str, _path: str, _host: str = "", _address: str = "") -> None:
    """Allow every request."""


def refuse(_token: str | None, _right: str, _path: str, _host: str = "", _address: str = "") -> None:
    raise Unauthorized("no token")


def test_health_shows_the_pauses_and_a_delete_resets_them(loop: Loop, meter: PauseMeter) -> None:
    app = HttpApp(InMemoryAdministration(), allow, pause_meter=meter)
    loop.turn(70)
    for _ in range(2):
        status, health = send_request(app, "GET", "/health")
        assert (status, health["status"], health["pauses"]["longest_ms"]) == (200, "ok", 70.0)
    assert send_request(app, "DELETE", "/$pauses")[1]["longest_ms"] == 70.0
    assert send_request(app, "GET", "/health")[1]["pauses"]["longest_ms"] == 0


def test_a_reset_requires_a_right(loop: Loop, meter: PauseMeter) -> None:
    loop.turn(70)
    app = HttpApp(InMemoryAdministration(), refuse, pause_meter=meter)
    assert send_request(app, "DELETE", "/$pauses")[0] == 401
    assert send_request(app, "GET", "/health")[1]["pauses"]["longest_ms"] == 70.0


def test_without_measuring_health_shows_no_pauses() -> None:
    app = HttpApp(InMemoryAdministration(), allow)
    assert "pauses" not in send_request(app, "GET", "/health")[1]
    assert send_request(app, "DELETE", "/$pauses")[0] == 404
