"""Fixtures of the store tests: `harness` runs a test on every store, `rocks` and `memory` on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.store_harness import MemoryHarness, RocksHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.store.store_harness import StoreHarness


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksHarness]:
    harness = RocksHarness(tmp_path / "store")
    yield harness
    harness.call(harness.store.close)


@pytest.fixture
def memory() -> MemoryHarness:
    return MemoryHarness()


@pytest.fixture(params=["rocks", "memory"])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    selected: StoreHarness = request.getfixturevalue(request.param)
    return selected
