"""docs/pipeline.md: its example runs unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]


def test_the_pipeline_example_runs(server: ServerProcess) -> None:
    server.create_entity("orders", "QueueDescription")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pipeline.md").read_text(), re.DOTALL)
    environment = {**os.environ, "PRIMARY": server.connection_string, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=300)  # noqa: PLW1510  # the exit code is checked below
    assert done.returncode == 0, done.stderr
    assert re.search(r"\|\s+0\|\s*1000\|", done.stdout), done.stdout
