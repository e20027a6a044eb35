"""A test that takes `rig` is asked of every store; one that takes `rocks` or `memory`, of that one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.rig import MemoryRig, RocksRig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.store.rig import Rig


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksRig]:
    rig = RocksRig(tmp_path / "store")
    yield rig
    rig.ask(rig.store.close)


@pytest.fixture
def memory() -> MemoryRig:
    return MemoryRig()


@pytest.fixture(params=["rocks", "memory"])
def rig(request: pytest.FixtureRequest) -> Rig:
    chosen: Rig = request.getfixturevalue(request.param)
    return chosen
