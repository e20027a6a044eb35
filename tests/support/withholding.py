"""Servers that cannot withhold messages, as Azure cannot: pumps defer them there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pytest

from twinbus.client.pairing.syphon.withheld_messages import WITHHOLD_OPERATION
from twinbus.server.amqp.management.node import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def without_withholding() -> Iterator[None]:
    """Let the servers of this process not know the operation."""
    known = OPERATIONS.pop(WITHHOLD_OPERATION)
    try:
        yield
    finally:
        OPERATIONS[WITHHOLD_OPERATION] = known


WITHHELD: Final = "active"
DEFERRED: Final = "deferred"


@pytest.fixture(params=[WITHHELD, DEFERRED])
def waiting_state(request: pytest.FixtureRequest) -> Iterator[str]:
    """The state of messages that wait for their destination, on a server that can withhold them, and on another."""
    with contextlib.nullcontext() if request.param == WITHHELD else without_withholding():
        yield request.param


@pytest.fixture
def cannot_withhold() -> Iterator[None]:
    """Servers that cannot withhold messages."""
    with without_withholding():
        yield
