"""Fixtures for all kinds of clients.

A test with the fixture `bus` runs with the sync client and the aio client, one of them with TLS; a test with
`every_bus` runs with all four combinations. A test runs for all its clients concurrently, each with its own `queue`,
because the SDK often waits for half a second.
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
    arguments = {
        parameter: pyfuncitem.funcargs[parameter] for parameter in inspect.signature(pyfuncitem.obj).parameters
    }

    def run(kind: str) -> None:
        queue = {"queue": server.create_queue()} if "queue" in arguments else {}
        pyfuncitem.obj(**arguments | {name: buses[kind]} | queue)

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
    """Connections that are being closed; all must be closed before their server stops."""
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
    """Placeholder; each kind of client gets its own queue with default properties."""
    return "made for each client"
