"""Usage of an earlier version is read from Parquet files, journals and partial files of a killed server."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.compatibility.archives import unpack
from tests.compatibility.usage_totals import totals
from twinbus.model.usage import journals_without_parquet

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("archive", ["data-directory", "workers-data-directory"])
def test_all_counts_are_read_and_journals_become_parquet_files(tmp_path: Path, archive: str) -> None:
    expected = unpack(archive, tmp_path)["usage"]
    usage = tmp_path / "data" / "usage"
    assert list(usage.rglob("*.parquet"))
    assert list(usage.glob("*.partial"))
    assert totals(usage) == expected
    journals = [str(path) for path in journals_without_parquet(usage)]
    assert journals
    subprocess.run([sys.executable, "-m", "twinbus.server.usage.rollup", str(usage), "0", *journals], check=True)
    assert journals_without_parquet(usage) == []
    assert totals(usage) == expected
