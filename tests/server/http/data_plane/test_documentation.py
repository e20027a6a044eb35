"""The examples of docs/http.md work as written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from tests.support.http_client import HttpClient

PAGE = Path(__file__).parents[4] / "docs" / "http.md"
TIMEOUT_S = 60


def test_the_examples_of_the_page_work(http_client: HttpClient, tmp_path: Path) -> None:
    server = http_client.server
    server.request("PUT", "orders", QUEUE_ENTRY.format(""), expected=201)
    script = "\n".join(["set -eu", *re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)])
    variables = {"BASE": f"http://{server.host}:{server.http_port}", "KEY_NAME": server.key_name, "KEY": server.key}
    result = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "two applestwo apples", "received under a lock, unlocked, received again"
    assert [http_client.receive_and_delete("orders").body for _ in range(2)] == [b"three pears", b"a plum"]
    server.delete_queue("orders")
