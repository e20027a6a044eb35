"""`twinbus rehearse`: make an entity, or a whole namespace, refuse for a while, and tell what the senders saw.

Owns: the options as they are typed, what is printed, and the exit codes: 1 if a namespace is not reached or refuses, 2
for options that cannot be, 130 after Ctrl-C. The outage is switched off in every case.
"""

from __future__ import annotations

import signal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.pair import exit_with_error
from twinbus.cli.rehearsal import Rehearsal
from twinbus.cli.service import AdminClient, AdminRequestFailed
from twinbus.model.outage import ALL_ENTITIES, MAX_OUTAGE_S, MIN_OUTAGE_S, OutageKind

if TYPE_CHECKING:
    from twinbus.cli.rehearsal import FailoverObserver, FailoverRecord

_EXIT_MISUSE = 2
_EXIT_INTERRUPTED = 130


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
        raise typer.Exit(_EXIT_MISUSE)
    if not MIN_OUTAGE_S <= seconds <= MAX_OUTAGE_S:
        typer.echo(f"twinbus rehearse: --for {seconds:g}: {MIN_OUTAGE_S:g} to {MAX_OUTAGE_S:g} seconds", err=True)
        raise typer.Exit(_EXIT_MISUSE)
    try:
        first = AdminClient(primary, ca_file or ())
        second = AdminClient(secondary, ca_file or ()) if secondary is not None else None
        path = ALL_ENTITIES if entity is None else entity
        rehearsal = Rehearsal(first, second, path, kind=kind.value, seconds=seconds)
        is_whole = _run_with_progress(rehearsal)
    except AdminRequestFailed as error:
        exit_with_error("rehearse", error)
    if second is not None:
        _print_result(rehearsal.observer)
    elif is_whole:
        what = "all entities" if entity is None else f"'{entity}'"
        typer.echo(f"The outage of {what} is over after {seconds:g} s. Give --secondary to see what senders reported.")
    if not is_whole:
        typer.echo("twinbus rehearse: interrupted; the outage is switched off", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)


def _run_with_progress(rehearsal: Rehearsal) -> bool:
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


def _print_result(observer: FailoverObserver) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without

    from twinbus.cli.pair_view import plural, print_line  # noqa: PLC0415

    console = Console(highlight=False)
    failed, suspected = len(observer.failed_over), len(observer.suspected_only)
    rest = len(observer.senders) - failed - suspected
    counts = f"{failed} failed over, {suspected} became suspect and did not fail over, {rest} noticed nothing"
    print_line(
        console, 0, f"{plural(len(observer.senders), 'sender')} reported{f': {counts}' if observer.senders else ''}."
    )
    for one in sorted(observer.records.values(), key=lambda one: (_first_change_s(one), one.client, one.path)):
        print_line(console, 2, (one.client, "bold"))
        print_line(console, 4, (one.path, "bold"), f"  {_describe(one)}")
        print_line(console, 6, one.reason)


def _first_change_s(record: FailoverRecord) -> float:
    return min(moment for moment in (record.suspected_s, record.failed_over_s) if moment is not None)


def _describe(record: FailoverRecord) -> str:
    """What a sender went through, in words."""
    words = []
    if record.suspected_s is not None:
        words.append(f"suspect after {record.suspected_s:.0f} s")
    words.append(
        "did not fail over" if record.failed_over_s is None else f"failed over after {record.failed_over_s:.0f} s"
    )
    if record.recovered_s is not None:
        words.append(f"healthy again after {record.recovered_s:.0f} s")
    elif record.sender_ended_s is not None:
        words.append(f"the sender ended after {record.sender_ended_s:.0f} s")
    else:
        words.append("not seen coming back" if record.failed_over_s is not None else "still suspect")
    return ", ".join(words)
