"""The outage switch of the shared server; outages end after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.outage_switch.switch_client import OutageSwitchClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture
def server(running_server: ServerProcess) -> Iterator[ServerProcess]:
    yield running_server
    OutageSwitchClient(running_server).end()
    running_server.check_log()


@pytest.fixture
def switch(server: ServerProcess) -> OutageSwitchClient:
    return OutageSwitchClient(server)
