"""One server for all tests of reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.source.feed import Feed
from tests.served import started

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    with started(tmp_path_factory.mktemp("feed"), "--stores=2") as server:
        feed = Feed(server)
        yield feed
        feed.close()
