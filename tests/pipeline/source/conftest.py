"""The fixture `feed`: one server for all tests of the Spark source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.source.message_feed import MessageFeed
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageFeed]:
    with run_server(tmp_path_factory.mktemp("feed"), "--stores=2") as server:
        feed = MessageFeed(server)
        yield feed
        feed.close()
