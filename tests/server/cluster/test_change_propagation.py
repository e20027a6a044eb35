"""Every running worker applies a change before the change is confirmed; a worker that cannot apply it is killed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twinbus.model.errors import InternalFault, StoreUnavailable
from twinbus.server.cluster.control_protocol import Apply, OutageEnded
from twinbus.server.cluster.worker_pool import WorkerPool
from twinbus.server.cluster.worker_process import WorkerState

if TYPE_CHECKING:
    import pytest

    from twinbus.server.cluster.control_protocol import Message
    from twinbus.server.cluster.worker_process import WorkerProcess

CHANGE = OutageEnded(None)


class FakeControl:
    """A control connection whose answers a test chooses."""

    def __init__(self, answer: object = None) -> None:
        self.sent: list[Message] = []
        self.requests: list[Message] = []
        self.answer = answer

    def notify(self, message: Message) -> None:
        self.sent.append(message)

    async def request(self, message: Message, _kind: type, _timeout_s: float) -> object:
        self.requests.append(message)
        if self.answer is asyncio.TimeoutError:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class KillRecorder:
    """The workers that were killed, and why."""

    def __init__(self, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reasons: dict[int, str] = {}
        for worker in pool.processes:
            monkeypatch.setattr(worker, "kill", self._killer(worker))

    def _killer(self, worker: WorkerProcess) -> Any:  # noqa: ANN401  # as `kill`
        def kill(reason: str) -> None:
            self.reasons[worker.number] = reason

        return kill


TIMEOUT_S = 0.05


def make_pool(*states: tuple[WorkerState, FakeControl]) -> WorkerPool:
    async def handle_request(_: object) -> None:
        """No test sends a request."""

    def fail_if_called(*_: object) -> Any:  # noqa: ANN401  # never called
        raise AssertionError

    pool = WorkerPool(
        len(states),
        timeout_s=TIMEOUT_S,
        descriptors=[],
        make_start=fail_if_called,
        handle_request=handle_request,
        on_cleanup_finished=fail_if_called,
    )
    for worker, (state, control) in zip(pool.processes, states, strict=True):
        worker.state = state
        worker.connection = control  # type: ignore[assignment]  # a fake
    return pool


async def test_serving_workers_get_a_request_and_loading_workers_a_notification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controls = [FakeControl() for _ in WorkerState]
    pool = make_pool(*zip(WorkerState, controls, strict=True))
    kills = KillRecorder(pool, monkeypatch)
    await pool.publish(CHANGE)
    expected = [Apply(1, CHANGE)]
    requested = {state for state, control in zip(WorkerState, controls, strict=True) if control.requests == expected}
    notified = {state for state, control in zip(WorkerState, controls, strict=True) if control.sent == expected}
    assert requested == {WorkerState.ADMITTED, WorkerState.SERVING}
    assert notified == {WorkerState.LOADING, WorkerState.LOADED}
    assert kills.reasons == {}
    await pool.publish(CHANGE)
    assert controls[-1].requests == [Apply(1, CHANGE), Apply(2, CHANGE)]


async def test_a_worker_that_is_late_or_fails_is_killed_and_the_others_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [None, asyncio.TimeoutError, InternalFault("it failed")]
    pool = make_pool(*[(WorkerState.SERVING, FakeControl(answer)) for answer in answers])
    kills = KillRecorder(pool, monkeypatch)
    await pool.publish(CHANGE)
    assert kills.reasons == {
        1: "it did not apply a change of the catalogue within 0.05 s",
        2: "it could not apply a change of the catalogue: it failed",
    }


async def test_a_worker_that_dies_during_a_change_does_not_block_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool((WorkerState.SERVING, FakeControl()), (WorkerState.SERVING, FakeControl(StoreUnavailable("gone"))))
    kills = KillRecorder(pool, monkeypatch)

    async def ask(*_: object) -> None:
        pool.processes[1].state = WorkerState.DOWN
        raise StoreUnavailable("gone")

    monkeypatch.setattr(pool.processes[1].connection, "request", ask)
    await pool.publish(CHANGE)
    assert kills.reasons == {}


async def test_the_replacement_of_a_worker_that_died_during_a_change_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool((WorkerState.SERVING, FakeControl()))
    kills = KillRecorder(pool, monkeypatch)

    async def ask(*_: object) -> None:
        pool.processes[0].connection = FakeControl()  # type: ignore[assignment]  # of the replacement
        raise StoreUnavailable("gone")

    monkeypatch.setattr(pool.processes[0].connection, "request", ask)
    await pool.publish(CHANGE)
    assert kills.reasons == {}


async def test_the_failure_of_a_worker_killed_while_loading_names_the_reason() -> None:
    worker = make_pool((WorkerState.LOADING, FakeControl())).processes[0]
    worker._on_state = lambda _: None  # noqa: SLF001
    worker._process = SimpleNamespace(returncode=None, pid=7, kill=lambda: None)  # type: ignore[assignment]  # noqa: SLF001
    worker.kill("it sent no heartbeat for 60 s")
    assert worker.failure == "worker 0 was killed: it sent no heartbeat for 60 s"


async def test_idle_times_are_unknown_while_a_worker_is_down() -> None:
    pool = make_pool((WorkerState.SERVING, FakeControl({1: 5.0})), (WorkerState.SERVING, FakeControl({1: 7.0})))
    assert await pool.idle_seconds() == [{1: 5.0}, {1: 7.0}]
    pool.processes[1].state = WorkerState.LOADED
    assert await pool.idle_seconds() is None
