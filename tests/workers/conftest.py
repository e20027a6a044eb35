"""A server of two processes that tests share which neither kill it nor change what others see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workers.crew import crew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workers.crew import Crew


@pytest.fixture(scope="session")
def two_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with crew(tmp_path_factory.mktemp("two"), "--worker-timeout=30", workers=2) as server:
        yield server


@pytest.fixture
def two_workers(two_running: Crew) -> Iterator[Crew]:
    yield two_running
    two_running.check_log()
