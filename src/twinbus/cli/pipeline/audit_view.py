"""What an audit found, on the screen.

Owns: the tables. What is lost or doubled is named; of many the first ones, and where the others are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinbus.pipeline.audit.report import MAX_NAMED
from twinbus.pipeline.audit.verdicts import Verdict

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from twinbus.pipeline.audit.report import AuditResult, NamedMessage

DEFAULT_WIDTH: Final = 120
"""Where no screen says how wide it is."""
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def show(result: AuditResult, report_folder: str | None, console: Console | None = None) -> None:
    """All of it."""
    console = console or _console()
    _show_counts(console, result)
    _show_parked(console, result)
    more = "" if report_folder is None else f"; all are in {report_folder}"
    _show_named(console, "Lost", result.lost, result.count(Verdict.LOST), more)
    _show_named(console, "Came more often than they were sent", result.duplicated, result.duplicated_count, more)
    _show_named(
        console, "Sent more than once, by the application", result.sent_repeatedly, result.sent_repeatedly_count, more
    )
    for reason, count in result.unknown_reasons:
        console.print(Text(f"Unknown, {count:,}: {reason}"))
    for what in result.missing_inputs[:MAX_NAMED]:
        console.print(Text(f"Missing: {what}"))
    if len(result.missing_inputs) > MAX_NAMED:
        console.print(Text(f"Missing: {len(result.missing_inputs) - MAX_NAMED:,} more like these"))
    if result.until is not None:
        console.print(Text(f"Sends up to {result.until:%Y-%m-%d %H:%M:%S} UTC were asked about."))
    console.print(Text(conclusion(result)))


def conclusion(result: AuditResult) -> str:
    """In one line."""
    total, lost, unknown = sum(result.counts.values()), result.count(Verdict.LOST), result.count(Verdict.UNKNOWN)
    if lost:
        return f"{lost:,} of {total:,} messages are LOST" + (f", of {unknown:,} it is unknown." if unknown else ".")
    if unknown:
        return f"Of {unknown:,} of {total:,} messages it is unknown what became of them; none is known to be lost."
    return f"Nothing is lost: {total:,} messages."


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=DEFAULT_WIDTH)


def _show_counts(console: Console, result: AuditResult) -> None:
    verdicts = [one for one in Verdict if result.count(one)]
    table = Table(title="Messages", title_justify="left")
    table.add_column("entity")
    for verdict in verdicts:
        table.add_column(verdict.value, justify="right")
    for entity in sorted({destination for destination, _ in result.counts}):
        found = [result.counts.get((entity, verdict.value), 0) for verdict in verdicts]
        table.add_row(Text(entity), *[f"{count:,}" for count in found])
    table.add_row("all", *[f"{result.count(verdict):,}" for verdict in verdicts], style="bold")
    console.print(table)


def _show_parked(console: Console, result: AuditResult) -> None:
    if not result.parked_durations:
        return
    table = Table("entity", title="How long messages were parked", title_justify="left")
    for name in ("messages", "median", "95 %", "longest"):
        table.add_column(name, justify="right")
    for one in result.parked_durations:
        lengths = [_format_duration(length) for length in (one.median_ms, one.percentile_95_ms, one.max_ms)]
        table.add_row(Text(one.destination), f"{one.count:,}", *lengths)
    console.print(table)


def _show_named(console: Console, title: str, messages: Sequence[NamedMessage], count: int, where_all_are: str) -> None:
    if not messages:
        return
    first = f", the first {len(messages)}{where_all_are}" if count > len(messages) else ""
    table = Table(title=f"{title}: {count:,}{first}", title_justify="left")
    for name in ("message", "entity", "session", "sent at", "sent", "came", "numbers", "client"):
        table.add_column(name, justify="right" if name in ("sent", "came") else "left", overflow="fold")
    for one in messages:
        numbers = ", ".join(str(number) for number in one.sequence_numbers)
        about = (one.message_id, one.destination, one.session_id or "", _format_time(one.first_sent))
        table.add_row(
            *[
                Text(text)
                for text in (*about, f"{one.sent_count}", f"{one.arrived_count}", numbers, one.client_id or "")
            ]
        )
    console.print(table)


def _format_time(time: dt.datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def _format_duration(milliseconds: int) -> str:
    if milliseconds < _MINUTE_MS:
        return f"{milliseconds / _SECOND_MS:.1f} s"
    if milliseconds < _HOUR_MS:
        return f"{milliseconds // _MINUTE_MS} min {milliseconds % _MINUTE_MS // _SECOND_MS} s"
    return f"{milliseconds // _HOUR_MS} h {milliseconds % _HOUR_MS // _MINUTE_MS} min"
