"""The command `twinbus rehearse`: simulate an outage of an entity or a namespace, and report how senders reacted.

Owns the options, the output and the exit codes: 1 if a namespace cannot be reached or refuses a request, 2 for invalid
options, 130 after Ctrl-C. The outage is always switched off at the end.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli import connection
from twinbus.cli.admin_client import AdminClient, AdminRequestFailed
from twinbus.cli.output import EXIT_INTERRUPTED, EXIT_MISUSE, CommandFailed, JsonOption, examples, fail, print_json
from twinbus.cli.pair_status import read_senders
from twinbus.model.outage import ALL_ENTITIES, MAX_OUTAGE_S, MIN_OUTAGE_S, OutageKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.cli.pair_status import ReportedEntity, SenderReport

POLL_INTERVAL_S: Final = 1.0
MAX_RECOVERY_S: Final = 120.0
"""Longest wait for the senders to recover."""
RECOVERY_PING_INTERVALS: Final = 2
"""Number of ping intervals to wait for a sender to recover, up to MAX_RECOVERY_S."""


@dataclass(slots=True)
class FailoverRecord:
    """One sender's reaction for one entity. Times are those of the poll that showed it, in seconds from the start."""

    sender_key: tuple[str, str, str]
    client: str
    path: str
    reason: str
    ping_interval_s: float
    suspected_s: float | None = None
    failed_over_s: float | None = None
    recovered_s: float | None = None
    """When the sender was healthy again after a failover or a suspicion."""
    sender_ended_s: float | None = None
    """When the sender stopped reporting."""

    @property
    def is_recovery_pending(self) -> bool:
        """Whether the sender has failed over and may still recover."""
        return self.failed_over_s is not None and self.recovered_s is None and self.sender_ended_s is None


class FailoverObserver:
    """Records which senders fail over and recover, from successive polls of their reports."""

    def __init__(self, path: str) -> None:
        """Create an observer of one entity, or of all entities with `ALL_ENTITIES`."""
        self.records: dict[tuple[tuple[str, str, str], str], FailoverRecord] = {}
        self.senders: set[tuple[str, str, str]] = set()
        self._path = path.lower()
        self._unhealthy_before: set[tuple[tuple[str, str, str], str]] | None = None

    @property
    def pending_recoveries(self) -> list[FailoverRecord]:
        """Records of senders that have failed over and have neither recovered nor stopped reporting."""
        return [record for record in self.records.values() if record.is_recovery_pending]

    @property
    def failed_over(self) -> set[tuple[str, str, str]]:
        """Senders that failed over for at least one entity."""
        return {record.sender_key for record in self.records.values() if record.failed_over_s is not None}

    @property
    def suspected_only(self) -> set[tuple[str, str, str]]:
        """Senders that saw failures but did not fail over."""
        return {record.sender_key for record in self.records.values()} - self.failed_over

    def observe(self, senders: list[SenderReport], elapsed_s: float) -> None:
        """Record the reports of one poll. The first poll only finds entities that were unhealthy before the outage."""
        unhealthy = {
            (sender.key, record.path): (sender, record)
            for sender in senders
            for record in sender.unhealthy_entities
            if self._path in (ALL_ENTITIES, record.entity_path.lower())
        }
        live = {sender.key for sender in senders}
        self.senders |= live
        if self._unhealthy_before is None:
            self._unhealthy_before = set(unhealthy)
        self._unhealthy_before &= set(unhealthy)
        for key, (sender, entity) in unhealthy.items():
            if key not in self._unhealthy_before:
                self._record_failure(key, sender, entity, elapsed_s)
        for key, record in self.records.items():
            if record.sender_key not in live:
                record.sender_ended_s = elapsed_s if record.sender_ended_s is None else record.sender_ended_s
            else:
                record.sender_ended_s = None
                if key not in unhealthy and record.recovered_s is None:
                    record.recovered_s = elapsed_s

    def _record_failure(
        self, key: tuple[tuple[str, str, str], str], sender: SenderReport, entity: ReportedEntity, elapsed_s: float
    ) -> None:
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = FailoverRecord(
                sender.key, sender.client, entity.path, entity.reason, sender.ping_interval_s
            )
        record.recovered_s = None
        if not entity.is_failed_over:
            record.suspected_s = elapsed_s if record.suspected_s is None else record.suspected_s
        elif record.failed_over_s is None:
            record.failed_over_s = elapsed_s


class Rehearsal:
    """One simulated outage, until the senders have recovered."""

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
        """Set up an outage, which `run` starts. Without a secondary, no senders are observed."""
        self.observer = FailoverObserver(path)
        self.seconds = seconds
        self._primary = primary
        self._secondary = secondary
        self._path = path
        self._kind = kind
        self._sleep = sleep
        self._now_s = now_s

    def run(self, on_progress: Callable[[str, float], None]) -> None:
        """Run the outage. Call `on_progress` with the stage and the elapsed seconds after each poll.

        Raise AdminRequestFailed if the outage cannot be switched on. A KeyboardInterrupt also switches the outage off.
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
            self._watch("recovery", begun_s, lambda elapsed_s: self._is_recovery_over(elapsed_s - ended_s), on_progress)

    def _is_recovery_over(self, since_outage_s: float) -> bool:
        """Return whether all senders have recovered, or have had enough time to recover."""
        longest_s = max((record.ping_interval_s for record in self.observer.pending_recoveries), default=0.0)
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
                with suppress(AdminRequestFailed):  # the next poll may succeed
                    self.observer.observe(read_senders(self._secondary), elapsed_s)
            on_progress(stage, elapsed_s)
            if is_done(elapsed_s):
                return
            left_s = self.seconds - elapsed_s
            self._sleep(left_s if 0 < left_s < POLL_INTERVAL_S else POLL_INTERVAL_S)

    def _switch_on(self) -> None:
        try:
            self._primary.request("PUT", "$outage", path=self._path, seconds=f"{self.seconds:g}", kind=self._kind)
        except BaseException:  # the outage may be switched on although the response was lost
            with suppress(AdminRequestFailed):
                self._primary.request("DELETE", "$outage", path=self._path)
            raise

    def _switch_off(self) -> None:
        try:
            self._primary.request("DELETE", "$outage", path=self._path)
        except AdminRequestFailed as error:
            text = f"the outage was not switched off ({error}); it ends by itself after {self.seconds:g} s"
            raise AdminRequestFailed(text) from error


EXAMPLES: Final = examples(
    "twinbus rehearse --namespace --for 30 --secondary-profile backup",
    "twinbus rehearse --entity orders --kind busy",
)


def rehearse(  # noqa: PLR0913  # one per option
    *,
    entity: Annotated[str | None, typer.Option(metavar="PATH", help="Queue or topic to make unavailable.")] = None,
    namespace: Annotated[bool, typer.Option("--namespace", help="Make all entities unavailable.")] = False,
    seconds: Annotated[
        float, typer.Option("--for", metavar="SECONDS", help="Duration of the outage, 1 to 3600 seconds.")
    ] = 60.0,
    kind: Annotated[
        OutageKind, typer.Option(help="What clients get: an unavailable error, a busy error, or no response.")
    ] = OutageKind.REFUSE,
    connection_string: connection.ConnectionStringOption = None,
    admin: connection.AdminConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    secondary_connection_string: connection.SecondaryConnectionStringOption = None,
    secondary: Annotated[str | None, typer.Option("--secondary", hidden=True)] = None,
    secondary_ready_file: connection.SecondaryReadyFileOption = None,
    secondary_profile: connection.SecondaryProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse an outage, and show which senders failed over and recovered, and when.

    Senders report to the secondary. Without a secondary, the reactions of senders are not shown.
    """
    if (entity is None) == (not namespace):
        typer.echo("twinbus rehearse: give either --entity PATH or --namespace", err=True)
        raise typer.Exit(EXIT_MISUSE)
    if not MIN_OUTAGE_S <= seconds <= MAX_OUTAGE_S:
        typer.echo(f"twinbus rehearse: --for {seconds:g}: use {MIN_OUTAGE_S:g} to {MAX_OUTAGE_S:g} seconds", err=True)
        raise typer.Exit(EXIT_MISUSE)
    try:
        target = connection.find_target(connection_string, ready_file, profile, ca_file, admin=admin)
        places = (secondary_connection_string, secondary_ready_file, secondary_profile)
        observed = connection.find_optional_target(*places, ca_file, role=connection.Role.SECONDARY, admin=secondary)
        primary_client = AdminClient(target.admin_connection_string, target.ca_files)
        secondary_client = (
            AdminClient(observed.admin_connection_string, observed.ca_files) if observed is not None else None
        )
        path = ALL_ENTITIES if entity is None else entity
        rehearsal = Rehearsal(primary_client, secondary_client, path, kind=kind.value, seconds=seconds)
        is_complete = _run_with_progress(rehearsal)
    except (CommandFailed, OSError) as error:
        fail("rehearse", error)
    if as_json:
        print_json(_result_json(rehearsal, path, is_complete=is_complete))
    elif secondary_client is not None:
        _print_result(rehearsal.observer)
    elif is_complete:
        scope = "all entities" if entity is None else f"'{entity}'"
        advice = "Give --secondary-ready-file or --secondary-profile to see the reports of senders."
        typer.echo(f"The outage of {scope} ended after {seconds:g} s. {advice}")
    if not is_complete:
        typer.echo("twinbus rehearse: interrupted; the outage is switched off", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)


def _run_with_progress(rehearsal: Rehearsal) -> bool:
    """Run the rehearsal with a progress bar; return False if it was interrupted."""
    from rich.console import Console  # noqa: PLC0415  # `serve` starts faster
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    previous_handler = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # SIGTERM stops the rehearsal cleanly, like Ctrl-C
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"))
    try:
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("outage", total=rehearsal.seconds)
            rehearsal.run(lambda stage, elapsed_s: progress.update(task, description=stage, completed=elapsed_s))
    except KeyboardInterrupt:
        return False
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    return True


def _result_json(rehearsal: Rehearsal, path: str, *, is_complete: bool) -> dict[str, object]:
    observer = rehearsal.observer
    records = sorted(observer.records.values(), key=lambda record: (_first_change_s(record), record.client))
    return {
        "path": path,
        "seconds": rehearsal.seconds,
        "is_complete": is_complete,
        "senders": len(observer.senders),
        "failed_over": len(observer.failed_over),
        "suspected_only": len(observer.suspected_only),
        "records": [
            {field.name: getattr(record, field.name) for field in fields(record) if field.name != "sender_key"}
            for record in records
        ],
    }


def _print_result(observer: FailoverObserver) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts faster

    from twinbus.cli.output import plural  # noqa: PLC0415
    from twinbus.cli.pair_view import print_line  # noqa: PLC0415

    console = Console(highlight=False)
    failed, suspected = len(observer.failed_over), len(observer.suspected_only)
    unaffected = len(observer.senders) - failed - suspected
    counts = f"{failed} failed over, {suspected} became suspect and did not fail over, {unaffected} noticed nothing"
    print_line(
        console, 0, f"{plural(len(observer.senders), 'sender')} reported{f': {counts}' if observer.senders else ''}."
    )
    for record in sorted(
        observer.records.values(), key=lambda record: (_first_change_s(record), record.client, record.path)
    ):
        print_line(console, 2, (record.client, "bold"))
        print_line(console, 4, (record.path, "bold"), f"  {_describe(record)}")
        print_line(console, 6, record.reason)


def _first_change_s(record: FailoverRecord) -> float:
    return min(moment for moment in (record.suspected_s, record.failed_over_s) if moment is not None)


def _describe(record: FailoverRecord) -> str:
    """Describe the reaction of a sender in one line."""
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
        words.append("not recovered" if record.failed_over_s is not None else "still suspect")
    return ", ".join(words)
