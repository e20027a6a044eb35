"""docs/client.md: its examples are run as they stand, one after the other; and it tells what is so."""

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


async def run(example: str, known: dict[str, Any]) -> None:
    """A part of a coroutine, or a program of its own."""
    code = compiled(example)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, known)  # noqa: S307  # ours
    else:
        await asyncio.to_thread(exec, code, dict(known))


async def test_the_examples_do_what_is_said(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    for name, elements in (("orders", ""), ("bills", ""), ("baskets", "<RequiresSession>true</RequiresSession>")):
        bus.server.request("PUT", name, QUEUE_ENTRY.format(elements), expected=201)
    known: dict[str, Any] = {"CONNECTION_STRING": bus.server.connection_string, "factory": bus.shared_factory}
    exec("from twinbus.client import BrokeredMessage, MessagingFactory", known)  # noqa: S102  # as the first one does
    for example in EXAMPLES:
        await run(example, known)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "two pounds of apples"
    assert told[1].startswith("make it first: ")
    assert len(told) == 2
    counts = {name: bus.server.message_counts(name) for name in ("orders", "bills", "baskets")}
    assert counts == {"orders": (1, 2), "bills": (1, 0), "baskets": (0, 0)}
    for name in counts:
        bus.server.delete_queue(name)


def test_it_tells_every_error_of_the_clients_own_and_the_defaults() -> None:
    (table,) = re.findall(r"may it have happened\? \|\n\|---.*?\n(.*?)\n\n", PAGE, re.DOTALL)
    told = set(re.findall(r"`([A-Z]\w+)`", table))
    own = {name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__}
    of_pairs = {name for name in told if hasattr(pairing_errors, name)}
    assert told - of_pairs == own - {"EntityNotFound"}
    assert {"NotSent", "MessageCannotBeParked", "FailedOver", "ReservedPropertyName"} <= of_pairs
    assert "(60 seconds)" in PAGE
    assert "three times" in PAGE
    assert (FactorySettings().operation_timeout_s, RetryPolicy().max_retries) == (60, 3)
