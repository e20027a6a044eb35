"""Outages of the server that tests share: none is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.outage.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    yield running
    Switch(running).end()
    running.check_log()


@pytest.fixture
def switch(server: Served) -> Switch:
    return Switch(server)
