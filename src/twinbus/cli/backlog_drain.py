"""What `twinbus pair drain` does: it reaches both namespaces and moves messages until none is left, or none moves.

Owns: which backlog queues are meant, the progress that is shown, and the account of what is left and why. Options and
exit codes are the command's.
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
from twinbus.cli.pair_view import plural, print_line
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
"""The shortest wait for the first message to be tried, whatever `--wait` says."""
NO_DESTINATION: Final = "no valid destination"
SPOOL_IN_USE_HINT: Final = (
    "An application that runs sends what is in its spool by itself; to send refused messages again, it calls"
    " `pairing.resend_refused()`"
)


@dataclass(frozen=True, slots=True)
class RemainingMessages:
    """The messages that are left."""

    count: int
    details: Sequence[tuple[str, str]] = ()
    """For whom how many are, and why."""
    has_timed_out: bool = True
    """It was waited for messages that could move; else those that are left never will, as they are."""

    def print_details(self, headline: str) -> None:
        """Print a headline, for whom the messages are, and why they are left."""
        console = Console(stderr=True, highlight=False)
        print_line(console, 0, headline)
        for what, why in self.details:
            print_line(console, 2, (f"{what}: ", "bold"), why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """What the user has typed."""

    connection_strings: Sequence[str]
    """Of the primary, the secondary, and the secondary's administration."""
    primary_name: str | None
    lowest_index: int
    """The first backlog queue that is meant."""
    backlog_queue_count: int
    ca_files: Sequence[Path]
    idle_timeout_s: float
    deduct: bool
    not_found_grace_s: float


class PairClients:
    """Both namespaces."""

    def __init__(self, drain_options: DrainOptions) -> None:
        """`open` reaches them."""
        tls = tls_context(drain_options.ca_files)
        self.primary, self.secondary = [
            MessagingFactory.from_connection_string(text, tls=tls) for text in drain_options.connection_strings[:2]
        ]
        self.manager = NamespaceManager.from_connection_string(drain_options.connection_strings[2], tls=tls)
        self._options = drain_options

    @property
    def primary_name(self) -> str:
        """What backlog queues are named after."""
        name = self._options.primary_name or self.primary.where.namespace
        if name is None:
            host = self.primary.where.host
            raise ValueError(f"the name of the primary cannot be read from its host {host!r}: say --primary-name")
        return name

    async def find_backlog_queues(self) -> dict[str, int]:
        """Return the backlog queues that are meant, each with the duration of its locks in milliseconds."""
        name = self.primary_name
        return {
            found.path: found.description.lock_duration_ms
            async for found in self.manager.get_queues(backlog_queue_prefix(name))
            if (index := backlog_queue_index(found.path, name)) is not None and index >= self._options.lowest_index
        }

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Have both closed with a stack."""
        for one in (self.primary, self.secondary, self.manager):
            await stack.enter_async_context(one)


async def drain_backlog(drain_options: DrainOptions) -> RemainingMessages:
    """Bring parked messages back."""
    async with contextlib.AsyncExitStack() as stack:
        reached = PairClients(drain_options)
        await reached.open(stack)
        queues = await reached.find_backlog_queues()
        if not queues:
            typer.echo("There is no such backlog queue.")
            return RemainingMessages(0)
        draining = ManualDrain(
            reached.primary,
            reached.secondary,
            reached.manager,
            queues,
            deduct_parked_time=drain_options.deduct,
            not_found_grace_s=drain_options.not_found_grace_s,
            lock_durations_ms=queues,
        )
        stack.push_async_callback(draining.close)
        left = await _watch_drain(draining, drain_options.idle_timeout_s)
        if draining.dead_lettered:
            text = "`twinbus pair drain --dead-letters` sends them again when the cause is removed."
            print_line(
                Console(highlight=False), 0, f"{plural(draining.dead_lettered, 'message')} dead-lettered: {text}"
            )
        waiting = await draining.waiting_messages() if left else []
        return RemainingMessages(
            left, [_detail_row(one.path, one.message_count, one.reason, is_sample=one.is_sample) for one in waiting]
        )


async def resend_dead_letters(drain_options: DrainOptions) -> RemainingMessages:
    """Send the dead letters of backlog queues again."""
    async with contextlib.AsyncExitStack() as stack:
        reached = PairClients(drain_options)
        await reached.open(stack)
        queues = await reached.find_backlog_queues()
        before = await _count_dead_letters(reached.manager, queues)
        if not before:
            typer.echo("No message is dead-lettered in a backlog queue.")
            return RemainingMessages(0)
        holding = {path: queues[path] for path in before}
        dead_letters = DeadLetterResend(
            reached.primary, reached.secondary, holding, counts=before, deduct_parked_time=drain_options.deduct
        )
        await _watch_dead_letters(dead_letters, sum(before.values()), drain_options.idle_timeout_s)
        rows = [_detail_row(path, count, why) for (path, why), count in dead_letters.rejected.most_common()]
        rows += [_detail_row(path, count, why) for path, (count, why) in dead_letters.waiting.items()]
        if not dead_letters.is_complete:
            rows.append(("others", "so many messages stay that those behind them were not looked at"))
        if dead_letters.not_received:
            why = "they were not received: another program may have locked them"
            rows.append((f"{dead_letters.not_received:,}", why))
        left = sum((await _count_dead_letters(reached.manager, queues)).values())
        return RemainingMessages(left, rows, has_timed_out=bool(dead_letters.waiting))


async def send_spooled(drain_options: DrainOptions, spool_dir: Path) -> RemainingMessages:
    """Send what an application has left in its spool, refused messages too."""
    async with contextlib.AsyncExitStack() as stack:
        reached = PairClients(drain_options)
        await reached.open(stack)
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=reached.secondary,
            secondary_namespace_manager=reached.manager,
            primary_namespace_name=reached.primary_name,
            backlog_queue_count=drain_options.backlog_queue_count,
            failover_interval=0,
            require_secondary=False,
            not_found_grace=drain_options.not_found_grace_s,
            spool_dir=spool_dir,
        )
        try:
            pairing = await reached.primary.pair_namespace(options)
        except PairingFailed as error:
            if isinstance(error.__cause__, SpoolFailed):
                raise SpoolFailed(f"{error.__cause__}. {SPOOL_IN_USE_HINT}") from error
            raise
        await stack.enter_async_context(pairing)
        await pairing.resend_refused()
        left = await _watch_spool(pairing, drain_options.idle_timeout_s)
        assert pairing.spool is not None
        refusals = [alarm for alarm in pairing.observers.alarms.raised if alarm.kind is AlarmKind.DESTINATION_REFUSES]
        rows = [("waiting", alarm.reason) for alarm in refusals]
        if left.refused:
            rows.append(
                (f"{left.refused:,} refused", f"each with the reason beside it in {pairing.spool.folder}/refused")
            )
        rows += [(f"'{one.path}' is {one.state.value}", one.why) for one in pairing.entities if one.why is not None]
        return RemainingMessages(left.count + left.refused, rows, has_timed_out=left.count > 0)


async def _count_dead_letters(manager: NamespaceManager, queues: dict[str, int]) -> dict[str, int]:
    """Return the backlog queues that have dead letters, and how many."""
    counts = {path: (await manager.get_queue_runtime(path)).dead_letter_count for path in queues}
    return {path: count for path, count in counts.items() if count}


def _detail_row(path: str | None, count: int, reason: str, *, is_sample: bool = False) -> tuple[str, str]:
    whom = NO_DESTINATION if path is None else f"'{path}'"
    return f"{'at least ' if is_sample else ''}{count:,} for {whom}", reason


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
    """Show the progress, until all messages are back or none has moved for a while."""
    loop = asyncio.get_running_loop()
    with _progress_bar() as progress:
        left = await drain.count_remaining()
        task = progress.add_task("moved", total=left)
        drain.start()
        least, last_done, since_s = left, 0, loop.time()
        while left and loop.time() - since_s < (
            idle_timeout_s if drain.has_begun else max(idle_timeout_s, MIN_FIRST_WAIT_S)
        ):
            await asyncio.sleep(POLL_INTERVAL_S)
            left = await drain.count_remaining()
            done = drain.moved + drain.dead_lettered
            if done != last_done or left < least:  # more messages being parked is no progress
                least, last_done, since_s = left, done, loop.time()
            text = "waiting" if drain.has_blocked_messages and loop.time() > since_s else "moved"
            progress.update(task, description=text, completed=done, total=done + left)
        progress.update(task, description=f"moved {drain.moved:,}, dead-lettered {drain.dead_lettered:,}")
    return left


async def _watch_dead_letters(dead_letters: DeadLetterResend, count: int, idle_timeout_s: float) -> None:
    with _progress_bar() as progress:
        task = progress.add_task("sent again", total=count)
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
    """Show the progress, until the spool is empty or nothing has left it for a while."""
    loop = asyncio.get_running_loop()
    with _progress_bar() as progress:
        status = pairing.spool_status
        assert status is not None
        total = least = status.count
        task, since_s = progress.add_task("sent from the spool", total=total), loop.time()
        while status.count and loop.time() - since_s < idle_timeout_s:
            await asyncio.sleep(POLL_INTERVAL_S)
            status = pairing.spool_status
            assert status is not None
            if status.count < least:
                least, since_s = status.count, loop.time()
            progress.update(task, completed=total - status.count - status.refused)
    return status
