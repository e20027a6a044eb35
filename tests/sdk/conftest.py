"""Tests here may be coroutines: each runs on a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Coroutine

TIME_LIMIT_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    test: Coroutine[None, None, None] = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    uvloop.run(asyncio.wait_for(test, TIME_LIMIT_S))
    return True
