"""Tests may be coroutines: each runs on a loop of its own.

What a test imports are the sources. Servers that tests start run what is installed, compiled as its users have it;
where that is older than the sources, they run the sources as well, and the head of the report says so.

Tests that need a server, and neither kill it nor change what others see, share one: `server`, with a `queue` of the
test's own.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sysconfig
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support.server_process import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

SOURCES = Path(__file__).parents[1] / "src"

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

TIMEOUT_MARGIN_S = 10
"""By so much a coroutine's time is over before pytest's own, which ends the whole process."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    own = pyfuncitem.get_closest_marker("timeout")
    limit_s = float(own.args[0] if own is not None else pyfuncitem.config.getini("timeout"))
    uvloop.run(asyncio.wait_for(test, limit_s - TIMEOUT_MARGIN_S))
    return True


def installed_is_current() -> bool:
    installed = Path(sysconfig.get_path("purelib"))
    sources = [file.relative_to(SOURCES) for file in SOURCES.glob("twinbus/**/*.py")]
    return all(
        (installed / file).is_file() and (installed / file).read_bytes() == (SOURCES / file).read_bytes()
        for file in sources
    )


def pytest_configure() -> None:
    if not installed_is_current():
        os.environ["PYTHONPATH"] = str(SOURCES)


def pytest_report_header() -> str:
    return "servers run the sources: `make compile` is older" if "PYTHONPATH" in os.environ else "servers are compiled"


# --- the server that tests share --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a worker."""
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running_server: ServerProcess) -> Iterator[ServerProcess]:
    """The same server. Whatever a test did to it, it has not failed, and has logged no secret."""
    yield running_server
    running_server.check_log()


@pytest.fixture
def queue(server: ServerProcess) -> str:
    """A queue of the test's own, as a plain create makes it."""
    return server.create_queue()


@pytest.fixture
def name() -> str:
    """A name that no entity has."""
    return f"entity-{uuid.uuid4().hex}"
