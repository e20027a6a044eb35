"""The unmodified Azure SDK for JavaScript against a server: each program beside this file tests one behaviour.

Node's test runner runs each program; if a test fails, the assertion shows the runner's output.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

HERE = Path(__file__).parent
PROGRAMS = sorted(file.name.removesuffix(".test.js") for file in HERE.glob("*.test.js"))
TIMEOUT_S = 90


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    assert (HERE / "node_modules").is_dir(), "tools/setup installs the SDK"
    with run_server(tmp_path_factory.mktemp("sdk_js")) as server:
        yield server


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_javascript_program_passes(program: str, server: ServerProcess) -> None:
    environment = {
        "TWINBUS_PLAIN": server.connection_string,
        "TWINBUS_TLS": server.tls_connection_string,
        "TWINBUS_ADMINISTRATION": server.admin_connection_string,
        "NODE_EXTRA_CA_CERTS": server.ca_file,
    }
    run = subprocess.run(
        ["node", "--test", "--test-reporter=spec", f"{program}.test.js"],
        cwd=HERE,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    counts = dict(re.findall(r"^\S+ (pass|skipped|todo) (\d+)$", run.stdout, re.MULTILINE))
    assert counts.pop("pass") != "0", run.stdout
    assert counts == {"skipped": "0", "todo": "0"}, run.stdout
    server.check_log()


def test_every_javascript_program_is_run() -> None:
    """A program with a misspelt name would never run."""
    others = {"bus.js"}
    assert {file.name for file in HERE.glob("*.js")} == {f"{program}.test.js" for program in PROGRAMS} | others
