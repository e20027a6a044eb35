"""`twinbus rehearse`: make an entity, or a whole namespace, refuse for a while, and tell what the senders saw.

Owns: the options as they are typed, what is printed, and the exit codes: 1 if a namespace is not reached or refuses, 2
for options that cannot be, 130 after Ctrl-C. The outage is switched off in every case.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.admin_client import AdminClient, AdminRequestFailed
from twinbus.cli.pair import exit_with_error
from twinbus.cli.pair_status import read_senders
from twinbus.model.outage import ALL_ENTITIES, MAX_OUTAGE_S, MIN_OUTAGE_S, OutageKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.cli.pair_status import ReportedEntity, SenderReport

POLL_INTERVAL_S: Final = 1.0
MAX_RECOVERY_S: Final = 120.0
"""How long the senders have to come back, at the most."""
RECOVERY_PING_INTERVALS: Final = 2
"""... and so many of their ping intervals."""


@dataclass(slots=True)
class FailoverRecord:
    """One entity, as one sender saw it. Seconds from the beginning of the outage, as of the look that found it so."""

    sender_key: tuple[str, str, str]
    client: str
    path: str
    reason: str
    ping_interval_s: float
    suspected_s: float | None = None
    failed_over_s: float | None = None
    recovered_s: float | None = None
    """After it had failed over, or was suspect."""
    sender_ended_s: float | None = None
    """The sender reports no more."""

    @property
    def is_recovery_pending(self) -> bool:
        """The sender has failed over, and may come back."""
        return self.failed_over_s is not None and self.recovered_s is None and self.sender_ended_s is None


class FailoverObserver:
    """Sees who fails over and who comes back, by one look after the other."""

    def __init__(self, path: str) -> None:
        """`path` is that of the entity in question; or `EVERYTHING`."""
        self.records: dict[tuple[tuple[str, str, str], str], FailoverRecord] = {}
        self.senders: set[tuple[str, str, str]] = set()
        self._path = path.lower()
        self._unhealthy_before: set[tuple[tuple[str, str, str], str]] | None = None

    @property
    def pending_recoveries(self) -> list[FailoverRecord]:
        """Those of senders that have failed over, and have neither come back nor ended."""
        return [one for one in self.records.values() if one.is_recovery_pending]

    @property
    def failed_over(self) -> set[tuple[str, str, str]]:
        """Senders that did, with one entity at least."""
        return {one.sender_key for one in self.records.values() if one.failed_over_s is not None}

    @property
    def suspected_only(self) -> set[tuple[str, str, str]]:
        """Senders that saw failures, and did not fail over."""
        return {one.sender_key for one in self.records.values()} - self.failed_over

    def observe(self, senders: list[SenderReport], elapsed_s: float) -> None:
        """What was reported by now. The first look is for what was not healthy before."""
        unhealthy = {
            (sender.key, one.path): (sender, one)
            for sender in senders
            for one in sender.unhealthy_entities
            if self._path in (ALL_ENTITIES, one.entity_path.lower())
        }
        live = {sender.key for sender in senders}
        self.senders |= live
        if self._unhealthy_before is None:
            self._unhealthy_before = set(unhealthy)
        self._unhealthy_before &= set(unhealthy)
        for key, (sender, entity) in unhealthy.items():
            if key not in self._unhealthy_before:
                self._record_failure(key, sender, entity, elapsed_s)
        for key, one in self.records.items():
            if one.sender_key not in live:
                one.sender_ended_s = elapsed_s if one.sender_ended_s is None else one.sender_ended_s
            else:
                one.sender_ended_s = None
                if key not in unhealthy and one.recovered_s is None:
                    one.recovered_s = elapsed_s

    def _record_failure(
        self, key: tuple[tuple[str, str, str], str], sender: SenderReport, entity: ReportedEntity, elapsed_s: float
    ) -> None:
        one = self.records.get(key)
        if one is None:
            one = self.records[key] = FailoverRecord(
                sender.key, sender.client, entity.path, entity.reason, sender.ping_interval_s
            )
        one.recovered_s = None
        if not entity.is_failed_over:
            one.suspected_s = elapsed_s if one.suspected_s is None else one.suspected_s
        elif one.failed_over_s is None:
            one.failed_over_s = elapsed_s


class Rehearsal:
    """One outage, from before its beginning to when the senders are back."""

    def __init__(
        self,
        primary: AdminClient,
        secondary: AdminClient | None,
        path: str,
        *,
        kind: str,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is done yet. Without a secondary nobody is seen."""
        self.observer = FailoverObserver(path)
        self.seconds = seconds
        self._primary = primary
        self._secondary = secondary
        self._path = path
        self._kind = kind
        self._sleep = sleep
        self._now_s = now_s

    def run(self, on_progress: Callable[[str, float], None]) -> None:
        """Do it; `on_progress` hears what is done, and for how long. ServiceFailed if it cannot begin.

        KeyboardInterrupt ends it early: the outage is switched off all the same.
        """
        if self._secondary is not None:
            self.observer.observe(read_senders(self._secondary), 0.0)
        self._switch_on()
        begun_s = self._now_s()
        try:
            self._watch("outage", begun_s, lambda elapsed_s: elapsed_s >= self.seconds, on_progress)
        finally:
            self._switch_off()
        if self._secondary is not None:
            ended_s = self._now_s() - begun_s
            self._watch(
                "coming back", begun_s, lambda elapsed_s: self._is_recovery_over(elapsed_s - ended_s), on_progress
            )

    def _is_recovery_over(self, since_outage_s: float) -> bool:
        """So many seconds after the outage: nobody is awaited, or those who are have had their time."""
        longest_s = max((one.ping_interval_s for one in self.observer.pending_recoveries), default=0.0)
        patience_s = min(MAX_RECOVERY_S, RECOVERY_PING_INTERVALS * (longest_s + POLL_INTERVAL_S))
        return not self.observer.pending_recoveries or since_outage_s >= patience_s

    def _watch(
        self,
        stage: str,
        started_s: float,
        is_done: Callable[[float], bool],
        on_progress: Callable[[str, float], None],
    ) -> None:
        while True:
            elapsed_s = self._now_s() - started_s
            if self._secondary is not None:
                with suppress(AdminRequestFailed):  # one look that fails: the next may not
                    self.observer.observe(read_senders(self._secondary), elapsed_s)
            on_progress(stage, elapsed_s)
            if is_done(elapsed_s):
                return
            left_s = self.seconds - elapsed_s
            self._sleep(left_s if 0 < left_s < POLL_INTERVAL_S else POLL_INTERVAL_S)

    def _switch_on(self) -> None:
        try:
            self._primary.request("PUT", "$outage", path=self._path, seconds=f"{self.seconds:g}", kind=self._kind)
        except BaseException:  # its answer may be lost, and the outage on
            with suppress(AdminRequestFailed):
                self._primary.request("DELETE", "$outage", path=self._path)
            raise

    def _switch_off(self) -> None:
        try:
            self._primary.request("DELETE", "$outage", path=self._path)
        except AdminRequestFailed as error:
            text = f"the outage was not switched off ({error}); it ends by itself after {self.seconds:g} s"
            raise AdminRequestFailed(text) from error


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
