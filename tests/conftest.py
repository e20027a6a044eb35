"""Tests may be coroutines: each runs on a loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop

TIME_LIMIT_S = 110
"""Less than pytest's own, which ends the whole process."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    uvloop.run(asyncio.wait_for(test, TIME_LIMIT_S))
    return True
