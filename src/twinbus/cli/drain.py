"""`twinbus pair drain`: bring parked messages back by hand.

Owns: the options as they are typed, which backlog queues are meant, the progress, and the exit codes: 0 when these are
empty, 1 if a namespace is not reached or refuses, 2 if messages are left that nobody can deliver now.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from twinbus.cli.pair import app, stop
from twinbus.client import MessagingFactory, NamespaceManager
from twinbus.client.pairing.backlog import index_of, prefix_of
from twinbus.client.pairing.draining_by_hand import DrainingByHand
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S: Final = 0.5


@app.command()
def drain(  # noqa: PLR0913  # as many as there are options
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="Connection string of the primary.")],
    secondary: Annotated[str, typer.Argument(metavar="SECONDARY", help="Connection string of the secondary.")],
    admin: Annotated[
        str, typer.Argument(metavar="SECONDARY_ADMIN", help="Of the secondary, as for its administration.")
    ],
    *,
    extra: Annotated[
        bool, typer.Option("--extra", help="Only the backlog queues at or above --count, which no syphon drains.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many backlog queues the application has.")] = 10,
    name: Annotated[
        str | None,
        typer.Option("--primary-name", help="What backlog queues are named after, where the host does not tell it."),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Take the parked time off the time to live.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds after which what has not moved is left.")] = 60.0,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file.")
    ] = None,
) -> None:
    """Bring parked messages of a pair back to its primary, until its backlog queues are empty."""
    try:
        left = asyncio.run(
            _drain((primary, secondary, admin), name, count if extra else 0, ca_file, wait_s=wait, deduct=deduct)
        )
    except (ServiceBusError, ValueError, OSError) as error:
        stop("pair drain", error)
    if left:
        typer.echo(f"twinbus pair drain: {left:,} messages are left: their destinations do not take them now", err=True)
        raise typer.Exit(2)


async def _drain(
    strings: Sequence[str], name: str | None, lowest: int, ca_file: Path | None, *, wait_s: float, deduct: bool
) -> int:
    """How many messages are left."""
    async with contextlib.AsyncExitStack() as stack:
        primary, secondary = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(text, ca_file=ca_file))
            for text in strings[:2]
        ]
        manager = NamespaceManager.from_connection_string(strings[2], ca_file=ca_file)
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
        last, since_s = left, loop.time()
        while left and loop.time() - since_s < wait_s:
            await asyncio.sleep(LOOK_S)
            left = await draining.left()
            if left != last:
                last, since_s = left, loop.time()
            done = draining.moved + draining.dead_lettered
            progress.update(task, completed=done, total=done + left)
        progress.update(task, description=f"moved {draining.moved:,}, dead-lettered {draining.dead_lettered:,}")
    return left
