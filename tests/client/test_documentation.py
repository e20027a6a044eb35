"""docs/client.md: its examples run unchanged, one after the other; its table of errors and its defaults are correct."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from tests.support.server_process import QUEUE_ENTRY
from twinbus.client import FactorySettings, RetryPolicy, errors
from twinbus.client.pairing import errors as pairing_errors

if TYPE_CHECKING:
    import pytest

    from tests.client.bus import Bus

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def compiled(example: str) -> CodeType:
    code = compile(example, "docs/client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    return code


async def run(example: str, names: dict[str, Any]) -> None:
    """Run an example that is part of a coroutine, or a complete program."""
    code = compiled(example)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)  # noqa: S307  # our own documentation
    else:
        await asyncio.to_thread(exec, code, dict(names))


async def test_the_examples_run_and_print_the_documented_output(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    for name, elements in (("orders", ""), ("bills", ""), ("baskets", "<RequiresSession>true</RequiresSession>")):
        bus.server.request("PUT", name, QUEUE_ENTRY.format(elements), expected=201)
    names: dict[str, Any] = {"CONNECTION_STRING": bus.server.connection_string, "factory": bus.shared_factory}
    exec("from twinbus.client import BrokeredMessage, MessagingFactory", names)  # noqa: S102  # as the first example does
    for example in EXAMPLES:
        await run(example, names)
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "two pounds of apples"
    assert output[1].startswith("make it first: ")
    assert len(output) == 2
    counts = {name: bus.server.message_counts(name) for name in ("orders", "bills", "baskets")}
    assert counts == {"orders": (1, 2), "bills": (1, 0), "baskets": (0, 0)}
    for name in counts:
        bus.server.delete_queue(name)


def test_the_page_lists_all_client_errors_and_the_defaults() -> None:
    (table,) = re.findall(r"may it have happened\? \|\n\|---.*?\n(.*?)\n\n", PAGE, re.DOTALL)
    documented = set(re.findall(r"`([A-Z]\w+)`", table))
    client_errors = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    documented_pair_errors = {name for name in documented if hasattr(pairing_errors, name)}
    assert documented - documented_pair_errors == client_errors - {"EntityNotFound"}
    assert {"NotSent", "MessageCannotBeParked", "FailedOver", "ReservedPropertyName"} <= documented_pair_errors
    assert "(60 seconds)" in PAGE
    assert "three times" in PAGE
    assert (FactorySettings().operation_timeout_s, RetryPolicy().max_retries) == (60, 3)
