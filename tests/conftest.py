"""Shared fixtures; tests may be coroutines, each of which runs on its own event loop.

Tests import the sources. Servers that tests start run the installed, compiled package; if that is older than the
sources, they run the sources, and the head of the report says so.

Tests that neither kill a server nor affect other tests share one: `server`, with a `queue` for each test.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sysconfig
import tempfile
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

# The time of an example depends more on the load of the machine than on the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

TIMEOUT_MARGIN_S = 10
"""A coroutine times out so much earlier than pytest's timeout, which ends the whole process."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    parameters = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in parameters})
    marker = pyfuncitem.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None else pyfuncitem.config.getini("timeout"))
    uvloop.run(asyncio.wait_for(test, limit_s - TIMEOUT_MARGIN_S))
    return True


def installed_is_current() -> bool:
    installed = Path(sysconfig.get_path("purelib"))
    sources = [file.relative_to(SOURCES) for file in SOURCES.glob("twinbus/**/*.py")]
    return all(
        (installed / file).is_file() and (installed / file).read_bytes() == (SOURCES / file).read_bytes()
        for file in sources
    )


CONFIGURATION = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if not installed_is_current():
        os.environ["PYTHONPATH"] = str(SOURCES)
    # Servers create their CA there, and commands read profiles: not in the home of the user who runs the tests.
    config.stash[CONFIGURATION] = os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="twinbus-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[CONFIGURATION], ignore_errors=True)


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
    """The shared server; after the test its log is checked for failures and secrets."""
    yield running_server
    running_server.check_log()


@pytest.fixture
def queue(server: ServerProcess) -> str:
    """A new queue with default properties."""
    return server.create_queue()


@pytest.fixture
def name() -> str:
    """A unique name for an entity."""
    return f"entity-{uuid.uuid4().hex}"
