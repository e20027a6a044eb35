"""What an audit found, on the screen.

Owns: the tables. What is lost or doubled is named; of many the first ones, and where the others are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinbus.pipeline.audit.report import NAMED
from twinbus.pipeline.audit.verdicts import Verdict

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from twinbus.pipeline.audit.report import Named, Outcome

WIDTH: Final = 120
"""Where no screen says how wide it is."""
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def show(outcome: Outcome, report: str | None, console: Console | None = None) -> None:
    """All of it."""
    console = console or _console()
    _show_counts(console, outcome)
    _show_parked(console, outcome)
    more = "" if report is None else f"; all are in {report}"
    _show_named(console, "Lost", outcome.lost, outcome.count(Verdict.LOST), more)
    _show_named(console, "Came more often than they were sent", outcome.doubled, outcome.doubled_count, more)
    _show_named(console, "Sent more than once, by the application", outcome.sent_again, outcome.sent_again_count, more)
    for reason, count in outcome.unknown:
        console.print(Text(f"Unknown, {count:,}: {reason}"))
    for what in outcome.missing[:NAMED]:
        console.print(Text(f"Missing: {what}"))
    if len(outcome.missing) > NAMED:
        console.print(Text(f"Missing: {len(outcome.missing) - NAMED:,} more like these"))
    if outcome.until is not None:
        console.print(Text(f"Sends up to {outcome.until:%Y-%m-%d %H:%M:%S} UTC were asked about."))
    console.print(Text(conclusion(outcome)))


def conclusion(outcome: Outcome) -> str:
    """In one line."""
    total, lost, unknown = sum(outcome.counts.values()), outcome.count(Verdict.LOST), outcome.count(Verdict.UNKNOWN)
    if lost:
        return f"{lost:,} of {total:,} messages are LOST" + (f", of {unknown:,} it is unknown." if unknown else ".")
    if unknown:
        return f"Of {unknown:,} of {total:,} messages it is unknown what became of them; none is known to be lost."
    return f"Nothing is lost: {total:,} messages."


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _show_counts(console: Console, outcome: Outcome) -> None:
    verdicts = [one for one in Verdict if outcome.count(one)]
    table = Table(title="Messages", title_justify="left")
    table.add_column("entity")
    for verdict in verdicts:
        table.add_column(verdict.value, justify="right")
    for entity in sorted({destination for destination, _ in outcome.counts}):
        found = [outcome.counts.get((entity, verdict.value), 0) for verdict in verdicts]
        table.add_row(Text(entity), *[f"{count:,}" for count in found])
    table.add_row("all", *[f"{outcome.count(verdict):,}" for verdict in verdicts], style="bold")
    console.print(table)


def _show_parked(console: Console, outcome: Outcome) -> None:
    if not outcome.parked:
        return
    table = Table("entity", title="How long messages were parked", title_justify="left")
    for name in ("messages", "median", "95 %", "longest"):
        table.add_column(name, justify="right")
    for one in outcome.parked:
        lengths = [_length(length) for length in (one.median_ms, one.most_ms, one.longest_ms)]
        table.add_row(Text(one.destination), f"{one.count:,}", *lengths)
    console.print(table)


def _show_named(console: Console, title: str, named: Sequence[Named], count: int, more: str) -> None:
    if not named:
        return
    first = f", the first {len(named)}{more}" if count > len(named) else ""
    table = Table(title=f"{title}: {count:,}{first}", title_justify="left")
    for name in ("message", "entity", "session", "sent at", "sent", "came", "numbers", "client"):
        table.add_column(name, justify="right" if name in ("sent", "came") else "left", overflow="fold")
    for one in named:
        numbers = ", ".join(str(number) for number in one.numbers)
        about = (one.message_id, one.destination, one.session_id or "", _told(one.first_sent))
        table.add_row(*[Text(text) for text in (*about, f"{one.sent}", f"{one.came}", numbers, one.client_id or "")])
    console.print(table)


def _told(time: dt.datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def _length(milliseconds: int) -> str:
    if milliseconds < _MINUTE_MS:
        return f"{milliseconds / _SECOND_MS:.1f} s"
    if milliseconds < _HOUR_MS:
        return f"{milliseconds // _MINUTE_MS} min {milliseconds % _MINUTE_MS // _SECOND_MS} s"
    return f"{milliseconds // _HOUR_MS} h {milliseconds % _HOUR_MS // _MINUTE_MS} min"
