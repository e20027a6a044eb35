"""Start and stop of an HTTP listener inside an event loop that it does not own."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import listen
from twinbus.server.http import listener as listener_module

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class SlowApp:
    """An app that replies once `may_answer` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.begun.set()
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


async def test_a_port_in_use_raises_an_error() -> None:
    first = await listen(SlowApp())
    with pytest.raises(OSError, match="in use"):
        await listen(SlowApp(), port=first.port)
    await first.close()


async def test_signal_handlers_are_left_unchanged() -> None:
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    listener = await listen(SlowApp())
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before
    await listener.close()


async def test_closing_waits_for_pending_requests() -> None:
    app = SlowApp()
    listener = await listen(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    port = listener.port
    writer.write(REQUEST)
    await app.begun.wait()
    closing = asyncio.create_task(listener.close(grace_s=20))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    app.may_answer.set()
    assert (await reader.read()).endswith(b"done")
    await closing
    writer.close()


async def test_a_request_not_answered_within_the_grace_period_is_aborted(caplog: pytest.LogCaptureFixture) -> None:
    app = SlowApp()
    listener = await listen(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(REQUEST)
    await app.begun.wait()
    await listener.close(grace_s=0.05)
    assert await reader.read() == b""
    assert [record.getMessage() for record in caplog.records] == [
        "aborting 1 HTTP requests that were not answered within 0.05 s"
    ]
    assert not listener.state.tasks
    writer.close()


async def test_an_idle_connection_does_not_delay_closing() -> None:
    app = SlowApp()
    app.may_answer.set()
    listener = await listen(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(REQUEST)
    await reader.readuntil(b"done")
    async with asyncio.timeout(10):
        await listener.close(grace_s=60)
    assert await reader.read() == b""
    writer.close()


async def test_an_idle_tls_client_without_close_notify_does_not_delay_closing(
    tls: ssl.SSLContext, certificate_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "CLOSE_TIMEOUT_S", 60)
    app = SlowApp()
    app.may_answer.set()
    listener = await listen(app, tls=tls)

    def ask_and_stay() -> ssl.SSLSocket:
        """Keep the socket open without reading, as clients with a connection pool do."""
        plain = socket.create_connection(("127.0.0.1", listener.port), timeout=20)
        client = ssl.create_default_context(cafile=certificate_file).wrap_socket(plain, server_hostname="localhost")
        client.sendall(REQUEST)
        received = b""
        while not received.endswith(b"done"):
            received += client.recv(65_536)
        return client

    client = await asyncio.to_thread(ask_and_stay)
    try:
        async with asyncio.timeout(10):
            await listener.close(grace_s=60)
    finally:
        client.close()
