"""Servers without the withhold operation, like Azure: pumps defer messages there instead of withholding them."""

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
    """Remove the withhold operation from the servers of this process."""
    operation = OPERATIONS.pop(WITHHOLD_OPERATION)
    try:
        yield
    finally:
        OPERATIONS[WITHHOLD_OPERATION] = operation


WITHHELD: Final = "active"
DEFERRED: Final = "deferred"


@pytest.fixture(params=[WITHHELD, DEFERRED])
def waiting_state(request: pytest.FixtureRequest) -> Iterator[str]:
    """State of messages that wait for their destination, on a server with and on one without the withhold operation."""
    with contextlib.nullcontext() if request.param == WITHHELD else without_withholding():
        yield request.param


@pytest.fixture
def cannot_withhold() -> Iterator[None]:
    """Run the test with servers that cannot withhold messages."""
    with without_withholding():
        yield
