"""What `twinbus pair drain` does: both namespaces are reached, and what is parked is moved until nothing is left.

Owns: which backlog queues are meant, and the progress that is shown. Options and exit codes are the command's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from twinbus.cli.service import trusting
from twinbus.client import MessagingFactory, NamespaceManager
from twinbus.client.pairing.backlog import index_of, prefix_of
from twinbus.client.pairing.draining_by_hand import DrainingByHand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOOK_S: Final = 0.5


async def bring_back(
    strings: Sequence[str], name: str | None, lowest: int, ca_files: Sequence[Path], *, wait_s: float, deduct: bool
) -> int:
    """How many messages are left."""
    tls = trusting(ca_files)
    async with contextlib.AsyncExitStack() as stack:
        primary, secondary = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(text, tls=tls))
            for text in strings[:2]
        ]
        manager = NamespaceManager.from_connection_string(strings[2], tls=tls)
        await stack.enter_async_context(manager)
        primary_name = name or primary.where.namespace
        if primary_name is None:
            raise ValueError(
                f"the name of the primary cannot be read from its host {primary.where.host!r}: say --primary-name"
            )
        paths = [
            found.path
            async for found in manager.get_queues(prefix_of(primary_name))
            if (index := index_of(found.path, primary_name)) is not None and index >= lowest
        ]
        if not paths:
            typer.echo("There is no such backlog queue.")
            return 0
        draining = DrainingByHand(primary, secondary, manager, paths, deduct=deduct)
        stack.push_async_callback(draining.close)
        return await _watch(draining, wait_s)


async def _watch(draining: DrainingByHand, wait_s: float) -> int:
    """Show how it goes on, until all is back or nothing has moved for a while."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    loop = asyncio.get_running_loop()
    with Progress(*columns) as progress:
        left = await draining.left()
        task = progress.add_task("moved", total=left)
        draining.start()
        least, last_done, since_s = left, 0, loop.time()
        while left and loop.time() - since_s < wait_s:
            await asyncio.sleep(LOOK_S)
            left = await draining.left()
            done = draining.moved + draining.dead_lettered
            if done != last_done or left < least:  # more messages being parked is no progress
                least, last_done, since_s = left, done, loop.time()
            progress.update(task, completed=done, total=done + left)
        progress.update(task, description=f"moved {draining.moved:,}, dead-lettered {draining.dead_lettered:,}")
    return left
