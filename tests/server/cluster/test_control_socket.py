"""Requests between the supervisor and a worker over a socket: each gets a reply, and errors keep their type."""

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
    """One end of a control connection, whose answer a test chooses."""

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

    async def _answer(self, _request: Message) -> object:
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


async def test_both_ends_send_notifications_and_requests() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.control.notify(Serve())
        worker.control.notify(Heartbeat({1: "broken"}))
        supervisor.answer, worker.answer = ["contoso"], {7: 1.5}
        assert await worker.control.request(ListPrimaries(), list[str], 5) == ["contoso"]
        assert await supervisor.control.request(GetIdleSeconds(), dict[int, float], 5) == {7: 1.5}
        assert supervisor.received == [Heartbeat({1: "broken"})]
        assert worker.received == [Serve()]


@pytest.mark.parametrize("error", [QuotaExceeded("too many"), EntityNotFound("orders"), StoreUnavailable("broken")])
async def test_an_error_keeps_its_type_and_text(error: Exception) -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.answer = error
        with pytest.raises(type(error)) as caught:
            await worker.control.request(DeleteEntity("orders"), str, 5)
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


async def test_details_of_an_internal_error_are_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.answer = RuntimeError("a secret")
        with pytest.raises(InternalFault, match=r"^internal error: see the server's log$"):
            await worker.control.request(DeleteEntity("orders"), str, 5)
    assert "DeleteEntity failed" in caplog.text


async def test_a_request_without_a_reply_in_time_fails_with_store_unavailable() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.is_open.clear()
        with pytest.raises(StoreUnavailable, match=r"within 0.05 s: the request may still be carried out"):
            await worker.control.request(DeleteEntity("orders"), str, 0.05)
        supervisor.answer = "late"
        supervisor.is_open.set()
        assert await worker.control.request(DeleteEntity("other"), str, 5) == "late"


async def test_pending_and_new_requests_fail_at_once_after_the_other_end_closes() -> None:
    async with connected_ends() as (supervisor, worker):
        supervisor.is_open.clear()
        request = asyncio.ensure_future(worker.control.request(DeleteEntity("orders"), str, 60))
        await supervisor.was_asked.wait()
        supervisor.control.close()
        await worker.is_lost.wait()
        with pytest.raises(StoreUnavailable, match="the supervisor, which owns the catalogue, is down"):
            await request
        with pytest.raises(StoreUnavailable, match="the supervisor, which owns the catalogue, is down"):
            await worker.control.request(DeleteEntity("orders"), str, 60)
        worker.control.notify(Heartbeat({}))  # is dropped without an error
        supervisor.is_open.set()


async def test_concurrent_requests_get_their_own_replies() -> None:
    async with connected_ends() as (supervisor, worker):

        async def answer(request: Message) -> str:
            assert isinstance(request, DeleteEntity)
            await asyncio.sleep(0.001 * (int(request.path) % 3))
            return request.path

        supervisor.control._handle_request = answer  # noqa: SLF001  # a different answer for each request
        requests = [worker.control.request(DeleteEntity(str(number)), str, 5) for number in range(100)]
        assert await asyncio.gather(*requests) == [str(number) for number in range(100)]
