"""docs/partitioning.md matches the code: its example runs, and its keys, limits and statements are correct."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.partitioning.test_hashing import VECTORS
from twinbus.model.limits import NamespaceLimits
from twinbus.model.partition_key import fragment_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "partitioning.md").read_text()
PLAIN: Final = " ".join(PAGE.split())


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "enable_partitioning=True" in example
    exec(compile(example, "docs/partitioning.md", "exec"), {"__name__": "example"})  # noqa: S102  # an example from our documentation


def test_q25_the_keys_in_the_page_hash_to_the_documented_fragments() -> None:
    documented = {key: int(fragment) for key, fragment in re.findall(r"^\| `([^`]+)` \| (\d+) \|", PAGE, re.MULTILINE)}
    assert len(documented) == 8
    assert documented.items() <= VECTORS.items()
    assert {key: fragment_of(key.encode()) for key in documented} == documented


def test_the_limits_in_the_page_are_the_defaults() -> None:
    limits = NamespaceLimits()
    assert f"at most {limits.max_partitioned} partitioned queues and topics (`max_partitioned`)" in PLAIN
    assert f"one of its {limits.max_entities:,} entities (`max_entities`)" in PLAIN


def test_q36_q32_r085_r114_r124_the_page_contains_the_required_notes() -> None:
    assert "Over HTTP, the flag requires `api-version=2013-10` or later" in PLAIN
    assert "Client SDKs of 2013 must have version 2.2 or later" in PLAIN
    assert (
        "**Give no key unless you need one**, in a transaction or outside: a key pins a message to a fragment" in PLAIN
    )
    assert "Not supported: SBMP, which is retired, and Service Bus for Windows Server 1.0 and 1.1" in PLAIN
    compatibility = (ROOT / "docs" / "compatibility.md").read_text()
    for retired in ("SBMP", "Service Bus for Windows Server 1.0, 1.1"):
        assert re.search(rf"^\| {re.escape(retired)} \| no \|", compatibility, re.MULTILINE)
