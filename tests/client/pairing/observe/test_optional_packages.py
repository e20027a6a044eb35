"""Without pyarrow or prometheus-client, only the journal or the metrics fail, and the error says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
WITHOUT = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
import twinbus.client.pairing
try:
    import {module}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("pyarrow", "twinbus.client.journal", "pip install twinbus[journal]"),
        ("prometheus_client", "twinbus.client.pairing.observe.metrics", "pip install twinbus[metrics]"),
    ],
)
def test_the_import_error_names_the_extra_to_install(package: str, module: str, extra: str) -> None:
    program = WITHOUT.format(package=package, module=module)
    completed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert extra in completed.stdout
