"""The work of `twinbus pair drain`: move messages until none is left, or until none moves any more.

Owns the choice of backlog queues, the progress display, and the report about the messages that are left. Options and
exit codes are in `drain`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from twinbus.cli.admin_client import tls_context
from twinbus.cli.output import plural
from twinbus.cli.pair_view import print_line
from twinbus.client import MessagingFactory, NamespaceManager
from twinbus.client.pairing import AlarmKind, PairingFailed, SendAvailabilityPairedNamespaceOptions, SpoolFailed
from twinbus.client.pairing.backlog.rotation import backlog_queue_index, backlog_queue_prefix
from twinbus.client.pairing.syphon.dead_letter_resend import DeadLetterResend
from twinbus.client.pairing.syphon.manual_drain import ManualDrain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twinbus.client.pairing import Pairing, SpoolStatus

POLL_INTERVAL_S: Final = 0.5
MIN_FIRST_WAIT_S: Final = 10.0
"""Shortest wait for the first delivery attempt, even if `--wait` is shorter."""
NO_DESTINATION: Final = "no valid destination"
SPOOL_IN_USE_HINT: Final = (
    "A running application sends the messages of its spool itself; to resend refused messages, call"
    " `pairing.resend_refused()` in the application"
)


@dataclass(frozen=True, slots=True)
class RemainingMessages:
    """Messages that were not moved, and why."""

    count: int
    details: Sequence[tuple[str, str]] = ()
    """A row for each destination: the count with the destination, and the reason."""
    has_timed_out: bool = True
    """Whether the drain stopped because no message moved; False if the remaining messages cannot be delivered."""

    def print_details(self, headline: str) -> None:
        """Print a headline, and a line for each destination with the reason."""
        console = Console(stderr=True, highlight=False)
        print_line(console, 0, headline)
        for subject, reason in self.details:
            print_line(console, 2, (f"{subject}: ", "bold"), reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """Options of the command."""

    connection_strings: Sequence[str]
    """Connection strings for the primary, for the secondary, and for administration of the secondary."""
    primary_name: str | None
    lowest_index: int
    """Number of the first backlog queue to drain."""
    backlog_queue_count: int
    ca_files: Sequence[Path]
    idle_timeout_s: float
    deduct: bool
    not_found_grace_s: float


class PairClients:
    """The factories for both namespaces, and the manager for the secondary."""

    def __init__(self, drain_options: DrainOptions) -> None:
        """Create the factories and the manager; nothing connects yet."""
        tls = tls_context(drain_options.ca_files)
        self.primary, self.secondary = [
            MessagingFactory.from_connection_string(text, tls=tls) for text in drain_options.connection_strings[:2]
        ]
        self.manager = NamespaceManager.from_connection_string(drain_options.connection_strings[2], tls=tls)
        self._options = drain_options

    @property
    def primary_name(self) -> str:
        """Name of the primary, which is part of the names of its backlog queues."""
        name = self._options.primary_name or self.primary.where.namespace
        if name is None:
            host = self.primary.where.host
            raise ValueError(f"the host {host!r} does not tell the name of the primary: give --primary-name")
        return name

    async def find_backlog_queues(self) -> dict[str, int]:
        """Return the backlog queues to drain, each with its lock duration in milliseconds."""
        name = self.primary_name
        return {
            queue.path: queue.description.lock_duration_ms
            async for queue in self.manager.get_queues(backlog_queue_prefix(name))
            if (index := backlog_queue_index(queue.path, name)) is not None and index >= self._options.lowest_index
        }

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Register the factories and the manager with `stack`, which closes them."""
        for client in (self.primary, self.secondary, self.manager):
            await stack.enter_async_context(client)


async def drain_backlog(drain_options: DrainOptions) -> RemainingMessages:
    """Move parked messages back to the primary."""
    async with contextlib.AsyncExitStack() as stack:
        clients = PairClients(drain_options)
        await clients.open(stack)
        queues = await clients.find_backlog_queues()
        if not queues:
            typer.echo("There are no such backlog queues.")
            return RemainingMessages(0)
        draining = ManualDrain(
            clients.primary,
            clients.secondary,
            clients.manager,
            queues,
            deduct_parked_time=drain_options.deduct,
            not_found_grace_s=drain_options.not_found_grace_s,
            lock_durations_ms=queues,
        )
        stack.push_async_callback(draining.close)
        remaining = await _watch_drain(draining, drain_options.idle_timeout_s)
        if draining.dead_lettered:
            text = "remove the cause, then run `twinbus pair drain --dead-letters` to resend them."
            print_line(
                Console(highlight=False), 0, f"{plural(draining.dead_lettered, 'message')} dead-lettered: {text}"
            )
        waiting = await draining.waiting_messages() if remaining else []
        return RemainingMessages(
            remaining,
            [
                _detail_row(entry.path, entry.message_count, entry.reason, is_sample=entry.is_sample)
                for entry in waiting
            ],
        )


async def resend_dead_letters(drain_options: DrainOptions) -> RemainingMessages:
    """Resend the dead-lettered messages in the backlog queues."""
    async with contextlib.AsyncExitStack() as stack:
        clients = PairClients(drain_options)
        await clients.open(stack)
        queues = await clients.find_backlog_queues()
        before = await _count_dead_letters(clients.manager, queues)
        if not before:
            typer.echo("The backlog queues have no dead-lettered messages.")
            return RemainingMessages(0)
        holding = {path: queues[path] for path in before}
        dead_letters = DeadLetterResend(
            clients.primary, clients.secondary, holding, counts=before, deduct_parked_time=drain_options.deduct
        )
        await _watch_dead_letters(dead_letters, sum(before.values()), drain_options.idle_timeout_s)
        rows = [_detail_row(path, count, reason) for (path, reason), count in dead_letters.rejected.most_common()]
        rows += [_detail_row(path, count, reason) for path, (count, reason) in dead_letters.waiting.items()]
        if not dead_letters.is_complete:
            rows.append(("others", "not read, because too many messages before them were left"))
        if dead_letters.not_received:
            reason = "not received: another program may have locked them"
            rows.append((f"{dead_letters.not_received:,}", reason))
        remaining = sum((await _count_dead_letters(clients.manager, queues)).values())
        return RemainingMessages(remaining, rows, has_timed_out=bool(dead_letters.waiting))


async def send_spooled(drain_options: DrainOptions, spool_dir: Path) -> RemainingMessages:
    """Send the messages in the spool of a stopped application, including refused messages."""
    async with contextlib.AsyncExitStack() as stack:
        clients = PairClients(drain_options)
        await clients.open(stack)
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=clients.secondary,
            secondary_namespace_manager=clients.manager,
            primary_namespace_name=clients.primary_name,
            backlog_queue_count=drain_options.backlog_queue_count,
            failover_interval=0,
            require_secondary=False,
            not_found_grace=drain_options.not_found_grace_s,
            spool_dir=spool_dir,
        )
        try:
            pairing = await clients.primary.pair_namespace(options)
        except PairingFailed as error:
            if isinstance(error.__cause__, SpoolFailed):
                raise SpoolFailed(f"{error.__cause__}. {SPOOL_IN_USE_HINT}") from error
            raise
        await stack.enter_async_context(pairing)
        await pairing.resend_refused()
        spool_status = await _watch_spool(pairing, drain_options.idle_timeout_s)
        assert pairing.spool is not None
        refusals = [alarm for alarm in pairing.observers.alarms.raised if alarm.kind is AlarmKind.DESTINATION_REFUSES]
        rows = [("waiting", alarm.reason) for alarm in refusals]
        if spool_status.refused:
            rows.append(
                (f"{spool_status.refused:,} refused", f"each with its reason in {pairing.spool.folder}/refused")
            )
        rows += [
            (f"'{entity.path}' is {entity.state.value}", entity.why)
            for entity in pairing.entities
            if entity.why is not None
        ]
        return RemainingMessages(spool_status.count + spool_status.refused, rows, has_timed_out=spool_status.count > 0)


async def _count_dead_letters(manager: NamespaceManager, queues: dict[str, int]) -> dict[str, int]:
    """Return the number of dead-lettered messages in each backlog queue that has any."""
    counts = {path: (await manager.get_queue_runtime(path)).dead_letter_count for path in queues}
    return {path: count for path, count in counts.items() if count}


def _detail_row(path: str | None, count: int, reason: str, *, is_sample: bool = False) -> tuple[str, str]:
    destination = NO_DESTINATION if path is None else f"'{path}'"
    return f"{'at least ' if is_sample else ''}{count:,} for {destination}", reason


# --- progress ---------------------------------------------------------------------------------------------------------


def _progress_bar() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns)


async def _watch_drain(drain: ManualDrain, idle_timeout_s: float) -> int:
    """Show the progress until all messages are moved or none has moved for a while; return how many are left."""
    loop = asyncio.get_running_loop()
    with _progress_bar() as progress:
        remaining = await drain.count_remaining()
        task = progress.add_task("moved", total=remaining)
        drain.start()
        lowest, last_done, since_s = remaining, 0, loop.time()
        while remaining and loop.time() - since_s < (
            idle_timeout_s if drain.has_begun else max(idle_timeout_s, MIN_FIRST_WAIT_S)
        ):
            await asyncio.sleep(POLL_INTERVAL_S)
            remaining = await drain.count_remaining()
            done = drain.moved + drain.dead_lettered
            if done != last_done or remaining < lowest:  # newly parked messages are not progress
                lowest, last_done, since_s = remaining, done, loop.time()
            text = "waiting" if drain.has_blocked_messages and loop.time() > since_s else "moved"
            progress.update(task, description=text, completed=done, total=done + remaining)
        progress.update(task, description=f"moved {drain.moved:,}, dead-lettered {drain.dead_lettered:,}")
    return remaining


async def _watch_dead_letters(dead_letters: DeadLetterResend, count: int, idle_timeout_s: float) -> None:
    with _progress_bar() as progress:
        task = progress.add_task("resent", total=count)
        running = asyncio.ensure_future(dead_letters.run(idle_timeout_s))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=POLL_INTERVAL_S)
                progress.update(task, completed=dead_letters.moved, total=max(count, dead_letters.moved))
        finally:
            running.cancel()
            await asyncio.wait([running])
        running.result()


async def _watch_spool(pairing: Pairing, idle_timeout_s: float) -> SpoolStatus:
    """Show the progress until the spool is empty or no message has left it for a while."""
    loop = asyncio.get_running_loop()
    with _progress_bar() as progress:
        status = pairing.spool_status
        assert status is not None
        total = lowest = status.count
        task, since_s = progress.add_task("sent from the spool", total=total), loop.time()
        while status.count and loop.time() - since_s < idle_timeout_s:
            await asyncio.sleep(POLL_INTERVAL_S)
            status = pairing.spool_status
            assert status is not None
            if status.count < lowest:
                lowest, since_s = status.count, loop.time()
            progress.update(task, completed=total - status.count - status.refused)
    return status
