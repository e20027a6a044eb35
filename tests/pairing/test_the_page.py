"""docs/pairing.md is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any, Final

from twinbus.client.pairing.failover import TRANSITIONS
from twinbus.client.pairing.rewriting import ALIASES
from twinbus.testing import InMemoryPair, in_virtual_time

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "pairing.md").read_text()


@in_virtual_time
async def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/pairing.md", "exec"), names)  # noqa: S102  # ours
    async with InMemoryPair() as pair:
        await pair.primary.create_queue("orders")
        await names["main"](
            pair.primary.connection_string, pair.secondary.connection_string, pair.secondary.admin_connection_string
        )
        assert [message.text for message in await pair.primary.messages("orders")] == ["two pounds of apples"]


def test_the_diagram_is_that_of_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    assert drawn["diagram"](TRANSITIONS) in PAGE


def test_every_alias_is_told() -> None:
    assert set(re.findall(r"^\| `(x-ms-\w+)` \|", PAGE, re.MULTILINE)) == ALIASES


def test_r025_r027_r068_what_is_left_to_the_owner_and_to_the_application_is_said() -> None:
    text = " ".join(PAGE.split())
    assert "Nothing is guaranteed for backlog queues that somebody else has changed" in text
    assert "removing those that are no longer used is the namespace owner's task" in text
    syphon = text.partition("## The syphon")[2]
    assert syphon.strip().startswith("At least one program of the application runs it (`enable_syphon=True`;")
    assert "Without an application that runs it, parked messages are brought back by hand" in syphon
