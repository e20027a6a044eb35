"""docs/messages.md: its examples run unchanged, one after the other; its table lists all methods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.client.test_documentation import run
from tests.support.server_process import QUEUE_ENTRY
from twinbus.client import BrokeredMessage, MessageInspector

if TYPE_CHECKING:
    import pytest

    from tests.client.bus import Bus

PAGE = (Path(__file__).parents[3] / "docs" / "messages.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_examples_run_and_print_what_they_find(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("orders", "archive"):
        bus.server.request("PUT", name, QUEUE_ENTRY.format(""), expected=201)
    orders = bus.shared_factory.create_queue_client("orders")
    for price in (5, 50, 500):
        await orders.send(BrokeredMessage(f"{price}", label="fruit", properties={"price": price}))
    late = await orders.receive()
    assert late is not None
    await orders.dead_letter(late, "late")
    names: dict[str, Any] = {"CONNECTION_STRING": bus.server.connection_string, "factory": bus.shared_factory}
    for example in EXAMPLES:
        await run(example, names)
    output = capsys.readouterr().out.splitlines()
    assert output[:3] == ["3 500", "late 1", "1 resubmitted"]
    assert output[-2:] == ["1 of 3", "500"]
    for name in ("orders", "archive"):
        bus.server.delete_queue(name)


def test_the_table_lists_all_methods() -> None:
    documented = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    inherited = {"close", "check_open"}
    methods = {name for name in vars(MessageInspector) if not name.startswith("_")} - inherited
    assert methods == documented
