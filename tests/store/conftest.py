"""A test that takes `rig` is asked of every store; one that takes `rocks` or `memory`, of that one."""

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
    rig = RocksHarness(tmp_path / "store")
    yield rig
    rig.call(rig.store.close)


@pytest.fixture
def memory() -> MemoryHarness:
    return MemoryHarness()


@pytest.fixture(params=["rocks", "memory"])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    chosen: StoreHarness = request.getfixturevalue(request.param)
    return chosen
