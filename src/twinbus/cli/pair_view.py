"""Output of `twinbus pair status`: the state of pairs on a terminal with 80 or more columns.

Owns the texts and the layout. Each pair has a headline, a paragraph per sender, and two tables about its backlog.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from twinbus.cli.output import plural
from twinbus.cli.pair_status import SUSPECT

if TYPE_CHECKING:
    from rich.console import Console

    from twinbus.cli.pair_status import PairStatus, ReportedEntity, SenderReport, SpoolReport

_DURATION_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def show(console: Console, pairs: list[PairStatus], address: str, primary: str | None = None) -> None:
    """Print all pairs of a secondary, or the pairs of one primary."""
    if not pairs and primary is None:
        print_line(console, 0, f"No paired client reports to {address}, and it has no backlog queues.")
    elif not pairs:
        text = f"No paired client of '{primary}' reports to {address}, and it has no backlog queues of '{primary}'."
        print_line(console, 0, text, " Leave out --primary to see all primaries.")
    for number, pair in enumerate(pairs):
        if number:
            console.print()
        words, age = _headline(pair)
        if len(words) + len(age) <= console.width:
            print_line(console, 0, (words + age, "bold"))
        else:
            print_line(console, 0, (f"{words},", "bold"))
            print_line(console, 2, (age.removeprefix(", "), "bold"))
        for sender in sorted(
            pair.senders, key=lambda sender: (not sender.unhealthy_entities and not sender.alarms, sender.key)
        ):
            _show_sender(console, sender, pair.now)
        _show_backlog(console, pair)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, for example "2 min 10 s"."""
    left = max(0, math.floor(seconds))
    parts: list[str] = []
    for name, size in _DURATION_UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
        if len(parts) == 2:  # noqa: PLR2004
            break
    return " ".join(part for part in parts if part) or "0 s"


def _headline(pair: PairStatus) -> tuple[str, str]:
    """Return the headline of a pair, and the age of its oldest parked message if there is one."""
    failed = sum(any(entity.is_failed_over for entity in sender.unhealthy_entities) for sender in pair.senders)
    words = plural(len(pair.senders), "sender") if pair.senders else "no live sender"
    words += f" ({failed:,} failed over)" if failed else ""
    parked = plural(pair.parked, "message") if pair.parked else "no message"
    age = f", the oldest for {_format_age(pair.oldest, pair.now)}" if pair.oldest is not None else ""
    dead = f", {plural(pair.dead_lettered, 'message')} dead-lettered" if pair.dead_lettered else ""
    return f"{pair.primary}: {words}, {parked} parked{dead}", age


# --- senders ----------------------------------------------------------------------------------------------------------


def _show_sender(console: Console, sender: SenderReport, now: dt.datetime) -> None:
    healthy = "1 entity" if sender.healthy_count == 1 else f"{sender.healthy_count:,} entities"
    details = [f"{healthy} healthy"] if sender.healthy_count or not sender.unhealthy_entities else []
    details += ["runs a syphon"] if sender.runs_syphon else []
    details += [f"host {sender.host}"] if sender.host else []
    details += [f"pid {sender.pid}"] if sender.pid else []
    details += [f"reported {_format_age(sender.reported, now)} ago"] if sender.reported is not None else []
    words = ", ".join(details)
    if 2 + len(sender.client) + 2 + len(words) <= console.width:
        print_line(console, 2, (sender.client, "bold"), f"  {words}")
    else:
        print_line(console, 2, (sender.client, "bold"))
        print_line(console, 4, words)
    if not sender.is_protected:
        print_line(console, 4, ("unprotected: no backlog queues exist", "bold red"))
    for entity in sender.unhealthy_entities:
        style = "yellow" if entity.state == SUSPECT else "bold red"
        _show_state(console, entity, style, _state_details(entity, sender, now))
        if entity.reason:
            print_line(console, 6, entity.reason)
    if sender.omitted_entities:
        print_line(console, 4, (f"{sender.omitted_entities:,} more entities are not healthy", "bold red"))
    for reason, queues in sender.unused_queues.items():
        described = (
            queues[0] if len(queues) == 1 else f"{len(queues):,} of its {sender.backlog_queues:,} backlog queues"
        )
        print_line(console, 4, ("does not use ", "yellow"), f"{described}: {reason}")
    if sender.spool is not None and (sender.spool.messages or sender.spool.refused):
        _show_spool(console, sender.spool, now)
    for alarm in sender.alarms:
        print_line(console, 4, ("alarm: ", "bold red"), alarm)


def _show_spool(console: Console, spool: SpoolReport, now: dt.datetime) -> None:
    """Print the number, size and age of the messages in a sender's spool."""
    parts = []
    if spool.messages:
        oldest = f", the oldest for {_format_age(spool.oldest, now)}" if spool.oldest is not None else ""
        parts.append(f"{plural(spool.messages, 'message')} ({_format_size(spool.bytes)}){oldest}")
    if spool.refused:
        parts.append(f"{plural(spool.refused, 'message')} refused ({_format_size(spool.refused_bytes)})")
    print_line(console, 4, ("spool: ", "yellow"), "; ".join(parts))


def _show_state(console: Console, entity: ReportedEntity, state_style: str, details: list[str]) -> None:
    """Print the state of an entity in one line, or in two lines if the terminal is narrow."""
    name = (entity.path, "bold"), "  ", (entity.state, state_style)
    if 4 + len(entity.path) + 2 + len(entity.state) + len("".join(details)) <= console.width:
        print_line(console, 4, *name, *details)
    else:
        print_line(console, 4, *name, *details[:1])
        print_line(console, 6, "".join(details[1:]).strip())


def _state_details(entity: ReportedEntity, sender: SenderReport, now: dt.datetime) -> list[str]:
    words = []
    if entity.since is not None:
        words += [
            f" for {_format_age(entity.since, now)},",
            f" since {entity.since.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC",
        ]
    if entity.next_ping is not None:
        words += [f", next ping in {format_duration(_seconds_to_ping(entity.next_ping, sender.ping_interval_s, now))}"]
    return words


def _seconds_to_ping(next_ping: dt.datetime, interval_s: float, now: dt.datetime) -> float:
    """Return the time to the next ping. If the reported ping is past, add multiples of the ping interval."""
    left_s = (next_ping - now).total_seconds()
    return left_s % interval_s if left_s < 0 < interval_s else left_s


# --- the backlog ------------------------------------------------------------------------------------------------------


def _show_backlog(console: Console, pair: PairStatus) -> None:
    holding = [queue for queue in pair.queues if queue.parked or queue.dead_lettered or queue.error]
    for queue in pair.queues:
        if queue.error or not queue.is_available:
            reason = queue.error or "its store is unavailable, so its counts may be wrong"
            print_line(console, 2, (f"{queue.path} could not be read: ", "bold red"), reason)
    if not holding:
        return
    least = "at least " if pair.is_sample else ""
    table = _table("parked for", "messages", "oldest")
    for destination in pair.destinations:
        table.add_row(
            Text(destination.path), f"{least}{destination.messages:,}", _format_age(destination.oldest, pair.now)
        )
    unknown = sum(queue.without_destination for queue in pair.queues)
    if unknown:
        table.add_row(Text("(no valid destination)", style="red"), f"{least}{unknown:,}", "")
    if table.row_count:
        console.print()
        console.print(table)
    if pair.is_sample:
        read = sum(queue.read_count for queue in pair.queues)
        text = f"Destinations are of {read:,} of {pair.parked:,} parked messages, the oldest of each queue."
        print_line(console, 2, text)
    table = _table("backlog queue", "messages", "dead-lettered", "oldest")
    for queue in holding:
        name = Text(queue.path)
        if not pair.is_used(queue):
            name.append(" (no sender uses it)", style="yellow")
        table.add_row(name, f"{queue.parked:,}", f"{queue.dead_lettered:,}", _format_age(queue.oldest, pair.now))
    console.print()
    console.print(table)
    _show_dead_letters(console, pair)


def _show_dead_letters(console: Console, pair: PairStatus) -> None:
    """Print how to resend dead-lettered messages, if there are any."""
    if pair.dead_lettered:
        are = "1 message is" if pair.dead_lettered == 1 else f"{pair.dead_lettered:,} messages are"
        text = (
            f"{are} dead-lettered, each with a reason. Remove the cause, then run `twinbus pair drain --dead-letters`"
        )
        console.print()
        print_line(console, 1, (f"{text} to resend them.", "yellow"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_line(console: Console, indent: int, *parts: str | tuple[str, str]) -> None:
    """Print a line with an indent, wrapped to the width of the console."""
    for line in Text.assemble(*parts).wrap(console, max(20, console.width - indent), overflow="fold"):
        line.rstrip()
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)


def _format_size(byte_count: int) -> str:
    """Return a size in KB or MB, for example "1.2 MB"."""
    if byte_count >= 1_000_000:  # noqa: PLR2004
        return f"{byte_count / 1_000_000:,.1f} MB"
    return f"{byte_count / 1_000:,.1f} KB"


def _format_age(since: dt.datetime | None, now: dt.datetime) -> str:
    return "" if since is None else format_duration((now - since).total_seconds())
