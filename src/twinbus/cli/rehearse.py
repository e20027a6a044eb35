"""`twinbus rehearse`: make an entity, or a whole namespace, refuse for a while, and tell what the senders saw.

Owns: the options as they are typed, what is printed, and the exit codes: 1 if a namespace is not reached or refuses, 2
for options that cannot be, 130 after Ctrl-C. The outage is switched off in every case.
"""

from __future__ import annotations

import signal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.pair import stop
from twinbus.cli.rehearsal import Rehearsal
from twinbus.cli.service import Service, ServiceFailed
from twinbus.model.outage import EVERYTHING, LONGEST_S, SHORTEST_S, OutageKind

if TYPE_CHECKING:
    from twinbus.cli.rehearsal import Experience, Witness

_MISUSED = 2
_INTERRUPTED = 130


def rehearse(
    primary: Annotated[
        str, typer.Argument(metavar="CONNECTION_STRING", help="Of the namespace, with the right to manage it.")
    ],
    *,
    entity: Annotated[str | None, typer.Option(metavar="PATH", help="The queue or topic that is to refuse.")] = None,
    namespace: Annotated[bool, typer.Option("--namespace", help="All entities are to refuse.")] = False,
    seconds: Annotated[float, typer.Option("--for", metavar="SECONDS", help="How long: 1 to 3600.")] = 60.0,
    kind: Annotated[
        OutageKind, typer.Option(help="What clients see: that it is unavailable, that it is busy, or nothing at all.")
    ] = OutageKind.REFUSE,
    secondary: Annotated[
        str | None,
        typer.Option(metavar="CONNECTION_STRING", help="Of the secondary, to which the senders report."),
    ] = None,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
) -> None:
    """Rehearse an outage, and show which senders failed over and came back, and when."""
    if (entity is None) == (not namespace):
        typer.echo("twinbus rehearse: say either --entity PATH or --namespace", err=True)
        raise typer.Exit(_MISUSED)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        typer.echo(f"twinbus rehearse: --for {seconds:g}: {SHORTEST_S:g} to {LONGEST_S:g} seconds", err=True)
        raise typer.Exit(_MISUSED)
    try:
        first = Service(primary, ca_file or ())
        second = Service(secondary, ca_file or ()) if secondary is not None else None
        path = EVERYTHING if entity is None else entity
        rehearsal = Rehearsal(first, second, path, kind=kind.value, seconds=seconds)
        is_whole = _run(rehearsal)
    except ServiceFailed as error:
        stop("rehearse", error)
    if second is not None:
        _tell(rehearsal.witness)
    elif is_whole:
        what = "all entities" if entity is None else f"'{entity}'"
        typer.echo(f"The outage of {what} is over after {seconds:g} s. Give --secondary to see what senders reported.")
    if not is_whole:
        typer.echo("twinbus rehearse: interrupted; the outage is switched off", err=True)
        raise typer.Exit(_INTERRUPTED)


def _run(rehearsal: Rehearsal) -> bool:
    """False if it was interrupted."""
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: in good order
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"))
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("outage", total=rehearsal.seconds)
            rehearsal.run(lambda stage, elapsed_s: progress.update(task, description=stage, completed=elapsed_s))
    except KeyboardInterrupt:
        return False
    finally:
        signal.signal(signal.SIGTERM, before)
    return True


def _tell(witness: Witness) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without

    from twinbus.cli.pair_view import line, plural  # noqa: PLC0415

    console = Console(highlight=False)
    failed, suspected = len(witness.failed_over), len(witness.suspected_only)
    rest = len(witness.senders) - failed - suspected
    counts = f"{failed} failed over, {suspected} became suspect and did not fail over, {rest} noticed nothing"
    line(console, 0, f"{plural(len(witness.senders), 'sender')} reported{f': {counts}' if witness.senders else ''}.")
    for one in sorted(witness.experiences.values(), key=lambda one: (_first_s(one), one.client, one.path)):
        line(console, 2, (one.client, "bold"))
        line(console, 4, (one.path, "bold"), f"  {_course(one)}")
        line(console, 6, one.why)


def _first_s(one: Experience) -> float:
    return min(moment for moment in (one.suspected_s, one.failed_over_s) if moment is not None)


def _course(one: Experience) -> str:
    """What a sender went through, in words."""
    words = []
    if one.suspected_s is not None:
        words.append(f"suspect after {one.suspected_s:.0f} s")
    words.append("did not fail over" if one.failed_over_s is None else f"failed over after {one.failed_over_s:.0f} s")
    if one.came_back_s is not None:
        words.append(f"healthy again after {one.came_back_s:.0f} s")
    elif one.ended_s is not None:
        words.append(f"the sender ended after {one.ended_s:.0f} s")
    else:
        words.append("not seen coming back" if one.failed_over_s is not None else "still suspect")
    return ", ".join(words)
