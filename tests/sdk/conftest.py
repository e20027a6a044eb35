"""Clients of every kind.

A test with a `bus` is run for the sync client and for the aio client, one of them with TLS, which changes nothing above
the socket; a test with an `every_bus`, for all four. It is written once, and run for all at the same time, each with a
`queue` of its own: the SDK waits half a second here and there, and would wait four times as long one after the other.
"""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.sdk.bus import TIMEOUT_S, AsyncDriver, Bus, SyncDriver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.support.server_process import ServerProcess

KINDS = {"bus": ("sync-plain", "aio-tls"), "every_bus": ("sync-plain", "sync-tls", "aio-plain", "aio-tls")}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    name = next((name for name in KINDS if name in pyfuncitem.funcargs), None)
    if name is None:
        return None
    server: Any = pyfuncitem.funcargs["server"]
    buses: Any = pyfuncitem.funcargs[name]
    given = {wanted: pyfuncitem.funcargs[wanted] for wanted in inspect.signature(pyfuncitem.obj).parameters}

    def run(kind: str) -> None:
        queue = {"queue": server.create_queue()} if "queue" in given else {}
        pyfuncitem.obj(**given | {name: buses[kind]} | queue)

    with ThreadPoolExecutor(len(buses)) as threads:
        runs = {kind: threads.submit(run, kind) for kind in buses}
    for kind, future in runs.items():
        error = future.exception()
        if error is not None:
            error.add_note(f"this was the {kind} client")
            raise error
    return True


@pytest.fixture(scope="session")
def loop() -> Iterator[AsyncDriver]:
    loop = AsyncDriver()
    yield loop
    loop.stop()


@pytest.fixture(scope="session")
def closings(running_server: ServerProcess, loop: AsyncDriver) -> Iterator[list[Future[Any]]]:
    """Connections that are being closed; all are before their server stops."""
    assert running_server is not None
    assert loop is not None
    futures: list[Future[Any]] = []
    yield futures
    for future in futures:
        future.result(TIMEOUT_S)


@pytest.fixture
def bus(server: ServerProcess, loop: AsyncDriver, closings: list[Future[Any]]) -> Iterator[dict[str, Bus]]:
    yield from _buses(KINDS["bus"], server, loop, closings)


@pytest.fixture
def every_bus(server: ServerProcess, loop: AsyncDriver, closings: list[Future[Any]]) -> Iterator[dict[str, Bus]]:
    yield from _buses(KINDS["every_bus"], server, loop, closings)


def _buses(
    kinds: tuple[str, ...], server: ServerProcess, loop: AsyncDriver, closings: list[Future[Any]]
) -> Iterator[dict[str, Bus]]:
    buses = {
        kind: Bus(loop if kind.startswith("aio") else SyncDriver(), server, tls=kind.endswith("tls")) for kind in kinds
    }
    yield buses
    for bus in buses.values():
        closings += bus.close_in_background()


@pytest.fixture
def queue() -> str:
    """Stands for one of its own for each kind of client, as a plain create makes it."""
    return "made for each client"
