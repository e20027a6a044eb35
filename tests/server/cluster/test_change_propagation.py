"""A change is made by every worker that lives before it is answered; one that cannot is killed."""

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
    """A control socket that a test answers."""

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
    """Which were killed, and why."""

    def __init__(self, fleet: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reasons: dict[int, str] = {}
        for child in fleet.processes:
            monkeypatch.setattr(child, "kill", self._killer(child))

    def _killer(self, child: WorkerProcess) -> Any:  # noqa: ANN401  # as `kill`
        def kill(reason: str) -> None:
            self.reasons[child.number] = reason

        return kill


TIMEOUT_S = 0.05


def make_fleet(*states: tuple[WorkerState, FakeControl]) -> WorkerPool:
    async def answer(_: object) -> None:
        """Nobody asks."""

    def nothing(*_: object) -> Any:  # noqa: ANN401  # is not called
        raise AssertionError

    fleet = WorkerPool(
        len(states),
        timeout_s=TIMEOUT_S,
        descriptors=[],
        make_start=nothing,
        handle_request=answer,
        on_cleanup_finished=nothing,
    )
    for child, (step, line) in zip(fleet.processes, states, strict=True):
        child.state = step
        child.connection = line  # type: ignore[assignment]  # as far as it is needed
    return fleet


async def test_those_that_serve_are_asked_those_that_load_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [FakeControl() for _ in WorkerState]
    fleet = make_fleet(*zip(WorkerState, lines, strict=True))
    struck = KillRecorder(fleet, monkeypatch)
    await fleet.publish(CHANGE)
    word = [Apply(1, CHANGE)]
    asked = {step for step, line in zip(WorkerState, lines, strict=True) if line.requests == word}
    said = {step for step, line in zip(WorkerState, lines, strict=True) if line.sent == word}
    assert asked == {WorkerState.ADMITTED, WorkerState.SERVING}
    assert said == {WorkerState.LOADING, WorkerState.LOADED}
    assert struck.reasons == {}
    await fleet.publish(CHANGE)
    assert lines[-1].requests == [Apply(1, CHANGE), Apply(2, CHANGE)]


async def test_one_that_is_late_or_fails_is_killed_and_the_others_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [None, asyncio.TimeoutError, InternalFault("it failed")]
    fleet = make_fleet(*[(WorkerState.SERVING, FakeControl(answer)) for answer in answers])
    struck = KillRecorder(fleet, monkeypatch)
    await fleet.publish(CHANGE)
    assert struck.reasons == {
        1: "it has not made a change of the catalogue within 0.05 s",
        2: "it could not make a change of the catalogue: it failed",
    }


async def test_one_that_dies_meanwhile_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(
        (WorkerState.SERVING, FakeControl()), (WorkerState.SERVING, FakeControl(StoreUnavailable("gone")))
    )
    struck = KillRecorder(fleet, monkeypatch)

    async def ask(*_: object) -> None:
        fleet.processes[1].state = WorkerState.DOWN
        raise StoreUnavailable("gone")

    monkeypatch.setattr(fleet.processes[1].connection, "request", ask)
    await fleet.publish(CHANGE)
    assert struck.reasons == {}


async def test_one_that_died_meanwhile_and_is_back_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet((WorkerState.SERVING, FakeControl()))
    struck = KillRecorder(fleet, monkeypatch)

    async def ask(*_: object) -> None:
        fleet.processes[0].connection = FakeControl()  # type: ignore[assignment]  # of another life
        raise StoreUnavailable("gone")

    monkeypatch.setattr(fleet.processes[0].connection, "request", ask)
    await fleet.publish(CHANGE)
    assert struck.reasons == {}


async def test_why_one_was_killed_before_it_served_is_why_the_server_does_not_start() -> None:
    child = make_fleet((WorkerState.LOADING, FakeControl())).processes[0]
    child._on_state = lambda _: None  # noqa: SLF001
    child._process = SimpleNamespace(returncode=None, pid=7, kill=lambda: None)  # type: ignore[assignment]  # noqa: SLF001
    child.kill("it has given no sign of life for 60 s")
    assert child.failure == "worker 0 was killed: it has given no sign of life for 60 s"


async def test_idle_times_are_not_known_while_one_is_down() -> None:
    fleet = make_fleet((WorkerState.SERVING, FakeControl({1: 5.0})), (WorkerState.SERVING, FakeControl({1: 7.0})))
    assert await fleet.idle_seconds() == [{1: 5.0}, {1: 7.0}]
    fleet.processes[1].state = WorkerState.LOADED
    assert await fleet.idle_seconds() is None
