"""The supervisor and a worker ask each other over a socket: an answer comes always, and an error is what it was."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from twinbus.model.errors import EntityNotFound, InternalFault, QuotaExceeded, StoreUnavailable
from twinbus.server.cluster.control_connection import ControlConnection
from twinbus.server.cluster.control_protocol import (
    SUPERVISOR_DECODER,
    WORKER_DECODER,
    DeleteEntity,
    GetIdleSeconds,
    Heartbeat,
    ListPrimaries,
    Message,
    Serve,
)
from twinbus.server.cluster.transport import connect_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ControlEnd:
    """One end, that answers as a test wants."""

    def __init__(self, decoder: object) -> None:
        self.received: list[Message] = []
        self.was_asked = asyncio.Event()
        self.answer: object = None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_lost = asyncio.Event()
        self.control = ControlConnection(
            decoder,  # type: ignore[arg-type]
            on_notice=self.received.append,
            handle_request=self._answer,
            on_lost=self.is_lost.set,
        )

    async def _answer(self, _question: Message) -> object:
        self.was_asked.set()
        await self.is_open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@asynccontextmanager
async def connected_ends() -> AsyncIterator[tuple[ControlEnd, ControlEnd]]:
    """The supervisor's end, and the worker's."""
    near, far = socket.socketpair()
    supervisor, worker = ControlEnd(WORKER_DECODER), ControlEnd(SUPERVISOR_DECODER)
    await supervisor.control.open(connect_over(near))
    await worker.control.open(connect_over(far))
    yield supervisor, worker
    supervisor.control.close()
    worker.control.close()


async def test_both_say_and_ask() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.control.notify(Serve())
        worker.control.notify(Heartbeat({1: "broken"}))
        supervisor.answer, worker.answer = ["contoso"], {7: 1.5}
        assert await worker.control.request(ListPrimaries(), list[str], 5) == ["contoso"]
        assert await supervisor.control.request(GetIdleSeconds(), dict[int, float], 5) == {7: 1.5}
        assert supervisor.received == [Heartbeat({1: "broken"})]
        assert worker.received == [Serve()]


@pytest.mark.parametrize("error", [QuotaExceeded("too many"), EntityNotFound("orders"), StoreUnavailable("broken")])
async def test_an_error_is_what_it_was(error: Exception) -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.answer = error
        with pytest.raises(type(error)) as caught:
            await worker.control.request(DeleteEntity("orders"), str, 5)
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


async def test_a_fault_of_the_other_process_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.answer = RuntimeError("a secret")
        with pytest.raises(InternalFault, match=r"^the server failed; its log says why$"):
            await worker.control.request(DeleteEntity("orders"), str, 5)
    assert "DeleteEntity failed" in caplog.text


async def test_who_does_not_answer_in_time_is_unavailable() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.is_open.clear()
        with pytest.raises(StoreUnavailable, match=r"has not answered for 0.05 s: it may still be done"):
            await worker.control.request(DeleteEntity("orders"), str, 0.05)
        supervisor.answer = "late"
        supervisor.is_open.set()
        assert await worker.control.request(DeleteEntity("other"), str, 5) == "late"


async def test_who_has_gone_is_unavailable_at_once_and_from_then_on() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.is_open.clear()
        asking = asyncio.ensure_future(worker.control.request(DeleteEntity("orders"), str, 60))
        await supervisor.was_asked.wait()
        supervisor.control.close()
        await worker.is_lost.wait()
        with pytest.raises(StoreUnavailable, match="the process that keeps the catalogue is not there"):
            await asking
        with pytest.raises(StoreUnavailable, match="the process that keeps the catalogue is not there"):
            await worker.control.request(DeleteEntity("orders"), str, 60)
        worker.control.notify(Heartbeat({}))  # nobody hears it, and nobody minds
        supervisor.is_open.set()


async def test_many_questions_have_their_own_answers() -> None:
    async with connected_ends() as (supervisor, worker):

        async def answer(question: Message) -> str:
            assert isinstance(question, DeleteEntity)
            await asyncio.sleep(0.001 * (int(question.path) % 3))
            return question.path

        supervisor.control._handle_request = answer  # noqa: SLF001  # another one for each
        asked = [worker.control.request(DeleteEntity(str(number)), str, 5) for number in range(100)]
        assert await asyncio.gather(*asked) == [str(number) for number in range(100)]
