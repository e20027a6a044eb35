"""A change is made by every worker that lives before it is answered; one that cannot is killed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twinbus.model.errors import InternalFault, StoreUnavailable
from twinbus.server.workers.child import Step
from twinbus.server.workers.fleet import Fleet
from twinbus.server.workers.words import Apply, OutageEnded

if TYPE_CHECKING:
    import pytest

    from twinbus.server.workers.child import Child
    from twinbus.server.workers.words import Word

CHANGE = OutageEnded(None)


class Line:
    """A control socket that a test answers."""

    def __init__(self, answer: object = None) -> None:
        self.said: list[Word] = []
        self.asked: list[Word] = []
        self.answer = answer

    def say(self, word: Word) -> None:
        self.said.append(word)

    async def ask(self, word: Word, _kind: type, _timeout_s: float) -> object:
        self.asked.append(word)
        if self.answer is asyncio.TimeoutError:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Struck:
    """Which were killed, and why."""

    def __init__(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reasons: dict[int, str] = {}
        for child in fleet.children:
            monkeypatch.setattr(child, "kill", self._killer(child))

    def _killer(self, child: Child) -> Any:  # noqa: ANN401  # as `kill`
        def kill(reason: str) -> None:
            self.reasons[child.number] = reason

        return kill


TIMEOUT_S = 0.05


def fleet_of(*states: tuple[Step, Line]) -> Fleet:
    async def answer(_: object) -> None:
        """Nobody asks."""

    def nothing(*_: object) -> Any:  # noqa: ANN401  # is not called
        raise AssertionError

    fleet = Fleet(
        len(states), timeout_s=TIMEOUT_S, descriptors=[], make_start=nothing, answer=answer, on_buried=nothing
    )
    for child, (step, line) in zip(fleet.children, states, strict=True):
        child.step = step
        child.control = line  # type: ignore[assignment]  # as far as it is needed
    return fleet


async def test_those_that_serve_are_asked_those_that_load_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line() for _ in Step]
    fleet = fleet_of(*zip(Step, lines, strict=True))
    struck = Struck(fleet, monkeypatch)
    await fleet.publish(CHANGE)
    word = [Apply(1, CHANGE)]
    asked = {step for step, line in zip(Step, lines, strict=True) if line.asked == word}
    said = {step for step, line in zip(Step, lines, strict=True) if line.said == word}
    assert asked == {Step.ADMITTED, Step.SERVING}
    assert said == {Step.TOLD, Step.LOADED}
    assert struck.reasons == {}
    await fleet.publish(CHANGE)
    assert lines[-1].asked == [Apply(1, CHANGE), Apply(2, CHANGE)]


async def test_one_that_is_late_or_fails_is_killed_and_the_others_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [None, asyncio.TimeoutError, InternalFault("it failed")]
    fleet = fleet_of(*[(Step.SERVING, Line(answer)) for answer in answers])
    struck = Struck(fleet, monkeypatch)
    await fleet.publish(CHANGE)
    assert struck.reasons == {
        1: "it has not made a change of the catalogue within 0.05 s",
        2: "it could not make a change of the catalogue: it failed",
    }


async def test_one_that_dies_meanwhile_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of((Step.SERVING, Line()), (Step.SERVING, Line(StoreUnavailable("gone"))))
    struck = Struck(fleet, monkeypatch)

    async def ask(*_: object) -> None:
        fleet.children[1].step = Step.DOWN
        raise StoreUnavailable("gone")

    monkeypatch.setattr(fleet.children[1].control, "ask", ask)
    await fleet.publish(CHANGE)
    assert struck.reasons == {}


async def test_one_that_died_meanwhile_and_is_back_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of((Step.SERVING, Line()))
    struck = Struck(fleet, monkeypatch)

    async def ask(*_: object) -> None:
        fleet.children[0].control = Line()  # type: ignore[assignment]  # of another life
        raise StoreUnavailable("gone")

    monkeypatch.setattr(fleet.children[0].control, "ask", ask)
    await fleet.publish(CHANGE)
    assert struck.reasons == {}


async def test_why_one_was_killed_before_it_served_is_why_the_server_does_not_start() -> None:
    child = fleet_of((Step.TOLD, Line())).children[0]
    child._on_step = lambda _: None  # noqa: SLF001
    child._process = SimpleNamespace(returncode=None, pid=7, kill=lambda: None)  # type: ignore[assignment]  # noqa: SLF001
    child.kill("it has given no sign of life for 60 s")
    assert child.failure == "worker 0 was killed: it has given no sign of life for 60 s"


async def test_idle_times_are_not_known_while_one_is_down() -> None:
    fleet = fleet_of((Step.SERVING, Line({1: 5.0})), (Step.SERVING, Line({1: 7.0})))
    assert await fleet.idle_times() == [{1: 5.0}, {1: 7.0}]
    fleet.children[1].step = Step.LOADED
    assert await fleet.idle_times() is None
