"""Missed thresholds are reported, and runs that lost a message fail."""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
from pathlib import Path

import pytest

from bench import depth, speed
from bench.support.results import Threshold, check_thresholds, thresholds_table, write
from bench.support.server import ORDINARY_OPEN_FILES, LoadClientFailed, ProcessStats, raise_open_file_limit, run_load

COMPARED = """\
classic p99 ms               5.93   of 5.93, 6.10, 5.50
partitioned recv second    34,460.00   of 34,460.00, 1,000.50, 40,000.00
plain send              32,904.00   of 32,904.00, 1.00, 40,000.00
send=1.72(need 2.0) recv=1.37(need 1.5) recv-second=0.82(need 1.0) send-quorum=2.17 accept-p99=1.67(need 1.0)
"""


@pytest.fixture
def fake_client(tmp_path: Path) -> Path:
    """Return a load client that prints its argument."""
    program = tmp_path / "say"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1])\nsys.exit(int(sys.argv[2]))\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_threshold_is_a_floor_or_a_ceiling() -> None:
    assert Threshold("send", 2.0, 2.0).is_met
    assert not Threshold("send", 1.99, 2.0).is_met
    assert Threshold("memory", 1024, 1024, is_ceiling=True).is_met
    assert not Threshold("memory", 1024.1, 1024, is_ceiling=True).is_met


def test_a_missed_threshold_sets_the_exit_code_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    met, missed = Threshold("send", 2.5, 2, "x"), Threshold("memory", 1200, 1024, " MiB", is_ceiling=True)
    assert check_thresholds([met]) == 0
    assert check_thresholds([met, missed]) == 1
    assert capsys.readouterr().out == "missed: | memory | 1,200 MiB | at most 1,024 MiB | **missed** |\n"
    assert "| send | 2.50x | at least 2x | met |" in thresholds_table([met, missed])


def test_both_files_are_written(tmp_path: Path) -> None:
    write(tmp_path / "new", "name", "# Page\n", {"bars": [Threshold("send", 1.0, 2.0)]})
    assert (tmp_path / "new" / "name.md").read_text() == "# Page\n"
    written = json.loads((tmp_path / "new" / "name.json").read_text())
    assert written["bars"][0] | {"what": "send", "found": 1.0, "needed": 2.0, "is_met": False} == written["bars"][0]


def test_the_output_of_compare_is_parsed() -> None:
    assert speed.read_figures(COMPARED) == {
        "classic p99 ms": [5.93, 6.10, 5.50],
        "partitioned recv second": [34460.0, 1000.5, 40000.0],
        "plain send": [32904.0, 1.0, 40000.0],
    }
    ratios = speed.read_ratios(COMPARED)
    assert ratios["send-quorum"] == 2.17
    assert [(bar.found, bar.is_met) for bar in speed.find_thresholds(ratios)] == [
        (1.72, False),
        (1.37, False),
        (0.82, False),
        (1.67, True),
    ]
    assert speed.read_ratios("") == {}


@pytest.mark.parametrize("fault", ["missing 1 duplicates 0 foreign 0", "missing 0 duplicates 2 foreign 0"])
def test_a_run_that_lost_or_duplicated_a_message_fails(fake_client: Path, fault: str) -> None:
    line = f"recv 100 messages of 1024 B in 1.00 s = 100 msg/s, {fault}"
    with pytest.raises(LoadClientFailed, match=fault):
        run_load([str(fake_client), line, "0"])


def test_a_run_that_failed_or_printed_nothing_fails(fake_client: Path) -> None:
    good = "send 100 messages of 1024 B in 0.01 s = 10000 msg/s, accept p50 0.50 ms p99 2.25 ms"
    assert run_load([str(fake_client), good, "0"]).p99_ms == 2.25
    for line, status in ((good, "1"), ("", "0")):
        with pytest.raises(LoadClientFailed):
            run_load([str(fake_client), line, status])


def test_a_process_is_read_and_has_no_background_work_of_rocksdb() -> None:
    process = ProcessStats(1)
    assert 0 < process.resident_bytes <= process.peak_resident_bytes
    assert process.background.bytes == 0
    assert process.wait_for_idle_background(0.3) == pytest.approx(0, abs=0.1)


def test_the_server_gets_the_limits_of_a_login_shell_and_the_bench_keeps_its_own() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with raise_open_file_limit():
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(ORDINARY_OPEN_FILES, before[0])
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_disk_that_is_too_small_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="GiB free"):
        depth.check_disk(tmp_path, 10**12, 1024)


def test_a_rabbitmq_that_already_runs_in_the_folder_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(speed, "RABBITMQ4", Path("/bin/false"))
    with (
        pytest.raises(SystemExit, match="runs in / already"),
        speed.rabbitmq(Path("/")),
    ):  # the working directory of this test
        pass
