from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def _load_client() -> None:
    if shutil.which("gcc") is None or not Path("/usr/include/proton/proactor.h").exists():
        pytest.skip("the load client is made with gcc and libqpid-proton11-dev: bench/peer/build installs the latter")
