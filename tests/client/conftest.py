"""Fixtures `bus` and `every_bus`; a test with `every_bus` runs twice: without TLS and with TLS."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tests.client.bus import Bus

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    name = next((name for name in ("bus", "every_bus") if name in pyfuncitem.funcargs), None)
    if name is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {
        parameter: pyfuncitem.funcargs[parameter] for parameter in inspect.signature(pyfuncitem.obj).parameters
    }
    bus: Any = arguments[name]
    uvloop.run(bus.run(pyfuncitem.obj(**arguments)))
    return True


@pytest.fixture
def bus(server: ServerProcess) -> Bus:
    return Bus(server)


@pytest.fixture(params=["plain", "tls"])
def every_bus(server: ServerProcess, request: pytest.FixtureRequest) -> Bus:
    return Bus(server, tls=request.param == "tls")
