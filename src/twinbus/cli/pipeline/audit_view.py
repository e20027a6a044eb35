"""Output of `twinbus pipeline audit`: the result of an audit as tables.

Owns the texts and tables. If many messages are lost or duplicated, only the first are listed, with the folder that
lists all of them.
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
"""Width of the output if it does not go to a terminal."""
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def show(result: AuditResult, report_folder: str | None, console: Console | None = None) -> None:
    """Print the result; `report_folder` is where all verdicts were written, if anywhere."""
    console = console or _console()
    _show_counts(console, result)
    _show_parked(console, result)
    more = "" if report_folder is None else f"; all are in {report_folder}"
    _show_named(console, "Lost", result.lost, result.count(Verdict.LOST), more)
    _show_named(console, "Delivered more often than sent", result.duplicated, result.duplicated_count, more)
    _show_named(
        console, "Sent more than once by the application", result.sent_repeatedly, result.sent_repeatedly_count, more
    )
    for reason, count in result.unknown_reasons:
        console.print(Text(f"Unknown, {count:,}: {reason}"))
    for missing in result.missing_inputs[:MAX_NAMED]:
        console.print(Text(f"Missing: {missing}"))
    if len(result.missing_inputs) > MAX_NAMED:
        console.print(Text(f"Missing: {len(result.missing_inputs) - MAX_NAMED:,} more inputs"))
    if result.until is not None:
        console.print(Text(f"Sends up to {result.until:%Y-%m-%d %H:%M:%S} UTC were audited."))
    console.print(Text(conclusion(result)))


def result_json(result: AuditResult) -> dict[str, object]:
    """Return the result as JSON."""
    return {
        "conclusion": conclusion(result),
        "counts": [
            {"entity": entity, "verdict": verdict, "messages": count}
            for (entity, verdict), count in sorted(result.counts.items())
        ],
        "parked_durations": result.parked_durations,
        "lost": result.lost,
        "duplicated": result.duplicated,
        "duplicated_count": result.duplicated_count,
        "sent_repeatedly": result.sent_repeatedly,
        "sent_repeatedly_count": result.sent_repeatedly_count,
        "unknown_reasons": [{"reason": reason, "messages": count} for reason, count in result.unknown_reasons],
        "missing_inputs": result.missing_inputs,
        "until": result.until,
    }


def conclusion(result: AuditResult) -> str:
    """Return the conclusion of the audit in one line."""
    total, lost, unknown = sum(result.counts.values()), result.count(Verdict.LOST), result.count(Verdict.UNKNOWN)
    if lost:
        return f"{lost:,} of {total:,} messages are LOST" + (
            f"; the fate of {unknown:,} is unknown." if unknown else "."
        )
    if unknown:
        return f"Inconclusive: {unknown:,} of {total:,} messages could not be traced; none is known to be lost."
    return f"Nothing is lost: {total:,} messages."


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=DEFAULT_WIDTH)


def _show_counts(console: Console, result: AuditResult) -> None:
    verdicts = [kind for kind in Verdict if result.count(kind)]
    table = Table(title="Messages", title_justify="left")
    table.add_column("entity")
    for verdict in verdicts:
        table.add_column(verdict.value, justify="right")
    for entity in sorted({destination for destination, _ in result.counts}):
        counts = [result.counts.get((entity, verdict.value), 0) for verdict in verdicts]
        table.add_row(Text(entity), *[f"{count:,}" for count in counts])
    table.add_row("all", *[f"{result.count(verdict):,}" for verdict in verdicts], style="bold")
    console.print(table)


def _show_parked(console: Console, result: AuditResult) -> None:
    if not result.parked_durations:
        return
    table = Table("entity", title="How long messages were parked", title_justify="left")
    for name in ("messages", "median", "95 %", "longest"):
        table.add_column(name, justify="right")
    for parked in result.parked_durations:
        lengths = [_format_duration(length) for length in (parked.median_ms, parked.percentile_95_ms, parked.max_ms)]
        table.add_row(Text(parked.destination), f"{parked.count:,}", *lengths)
    console.print(table)


def _show_named(console: Console, title: str, messages: Sequence[NamedMessage], count: int, where_all_are: str) -> None:
    if not messages:
        return
    first = f", the first {len(messages)}{where_all_are}" if count > len(messages) else ""
    table = Table(title=f"{title}: {count:,}{first}", title_justify="left")
    for name in ("message", "entity", "session", "sent at", "sent", "delivered", "numbers", "client"):
        table.add_column(name, justify="right" if name in ("sent", "delivered") else "left", overflow="fold")
    for message in messages:
        numbers = ", ".join(str(number) for number in message.sequence_numbers)
        identity = (message.message_id, message.destination, message.session_id or "", _format_time(message.first_sent))
        table.add_row(
            *[
                Text(text)
                for text in (
                    *identity,
                    f"{message.sent_count}",
                    f"{message.arrived_count}",
                    numbers,
                    message.client_id or "",
                )
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
