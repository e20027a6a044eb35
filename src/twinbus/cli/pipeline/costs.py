"""`twinbus pipeline costs`: what messages cost, and what they would cost.

Owns: the options as they are typed, and what is printed. With `--what-if` neither Spark nor Java is needed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import typer

from twinbus.cli.pipeline.app import Master, app, plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console
    from rich.table import Table as ScreenTable

    from twinbus.pipeline.costs.bill import Terms
    from twinbus.pipeline.costs.document import Document, Table

_WIDTH: Final = 160
"""Characters, where the output is no screen and does not say how wide it is."""
Model: TypeAlias = Literal["operation", "document"]
Period: TypeAlias = Literal["day", "hour"]


def _if(help_text: str) -> Any:  # noqa: ANN401  # as typer's own
    return typer.Option(metavar="N", min=0, help=f"What if: {help_text}.")


def _per_cent(help_text: str) -> Any:  # noqa: ANN401
    return typer.Option(metavar="PERCENT", min=0, max=100, help=help_text)


@app.command()
def costs(  # noqa: PLR0913  # as many as there are options
    data: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]...", help="Data folders of servers, as of `serve --data`.")
    ] = None,
    *,
    journals: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Journals of clients (`journal_dir`), for outages and pings; repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From 2026-11-01, or 2026-11-01T08:00; UTC.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before that time; both are UTC.")] = None,
    model: Annotated[Model, typer.Option(help="Which model bills are made by; both are shown.")] = "operation",
    tariff: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prices; without, the list that comes with twinbus.")
    ] = None,
    failed_calls: Annotated[
        bool | None, typer.Option("--failed-calls/--no-failed-calls", help="Calls that failed are charged, or not.")
    ] = None,
    egress: Annotated[
        float | None, _per_cent("How much of what applications receive leaves the region; 0 without.")
    ] = None,
    period: Annotated[Period, typer.Option(help="What a FOCUS row is about.")] = "day",
    parquet: Annotated[str | None, typer.Option(metavar="DIR", help="Write FOCUS rows there, as Parquet.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page with charts there.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Predict the bill of a pair instead.")] = False,
    setup: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What if: the pair, as TOML; options below win over it.")
    ] = None,
    days: Annotated[int | None, _if("days of a month; 30")] = None,
    messages: Annotated[int | None, _if("messages in a month; 1,000,000")] = None,
    size: Annotated[int | None, _if("bytes of a message; 1,024")] = None,
    subscriptions: Annotated[int | None, _if("those that want each message; without, it goes to a queue")] = None,
    peek_lock: Annotated[
        bool | None, typer.Option("--peek-lock/--receive-and-delete", help="What if: how applications receive.")
    ] = None,
    parked: Annotated[
        float | None, _per_cent("What if: how many of the messages; without, as long as outages last.")
    ] = None,
    outage_minutes: Annotated[
        list[float] | None, typer.Option(metavar="N", help="What if: how long an outage lasts; repeatable.")
    ] = None,
    entities: Annotated[int | None, _if("entities that an outage makes unavailable; 1")] = None,
    clients: Annotated[int | None, _if("clients; 1")] = None,
    factories: Annotated[int | None, _if("factories of each client; 1")] = None,
    ping_seconds: Annotated[int | None, _if("seconds between pings; 60")] = None,
    queues: Annotated[int | None, _if("backlog queues; 10")] = None,
    hosts: Annotated[int | None, _if("programs that run the syphon; 1")] = None,
    poll_minutes: Annotated[int | None, _if("how long a poll of the syphon lasts; 15")] = None,
    processes: Annotated[int | None, _if("starts of programs that pair; 1")] = None,
    missing_queues: Annotated[int | None, _if("backlog queues that have to be created; 0")] = None,
    parking_bytes: Annotated[int | None, _if("what a message grows by when it is parked; 256")] = None,
    other_operations: Annotated[int | None, _if("operations of the account beside these; 0")] = None,
    premium_units: Annotated[int | None, _if("messaging units of Premium to compare with; 1")] = None,
    master: Master = None,
) -> None:
    """Tell what the messages of namespaces cost, by entity, outage and stage; or predict it."""
    of_pair = {
        "setup": setup,
        "days": days,
        "messages": messages,
        "size": size,
        "subscriptions": subscriptions,
        "peek_lock": peek_lock,
        "parked": parked,
        "outage_minutes": outage_minutes or None,
        "entities": entities,
        "clients": clients,
        "factories": factories,
        "ping_seconds": ping_seconds,
        "queues": queues,
        "hosts": hosts,
        "poll_minutes": poll_minutes,
        "processes": processes,
        "missing_queues": missing_queues,
        "parking_bytes": parking_bytes,
        "other_operations": other_operations,
        "premium_units": premium_units,
    }
    of_usage = {"journals": journals, "parquet": parquet, "since": since, "until": until, "master": master}
    with plain_errors("costs"):
        if what_if:
            _refuse({"data": data, **of_usage}, "is not for a prediction: leave it out")
            of_both = {"failed_calls": failed_calls, "egress": egress}
            document = _predict({**of_pair, **of_both}, tariff, model)
        else:
            _refuse(of_pair, "is for a prediction: say --what-if, or leave it out")
            asked = _Asked(data or [], journals or [], parquet, master)
            terms = _Terms(tariff, model, period, since, until, failed_calls is not False, egress or 0.0)
            document = _explain(asked, terms)
        _give(document, html)


class _Asked(NamedTuple):
    """What is read, and where it goes."""

    data: list[str]
    journals: list[str]
    parquet: str | None
    master: str | None


class _Terms(NamedTuple):
    """What a bill is made by, as it was typed."""

    tariff: Path | None
    model: Model
    period: Period
    since: str | None
    until: str | None
    bills_failed: bool
    egress: float

    def read(self) -> Terms:
        """Checked."""
        from twinbus.pipeline.costs.bill import Terms  # noqa: PLC0415
        from twinbus.pipeline.costs.charges import Model  # noqa: PLC0415  # `serve` starts sooner without
        from twinbus.pipeline.costs.kinds import Period  # noqa: PLC0415
        from twinbus.pipeline.costs.tariff import read_tariff  # noqa: PLC0415

        return Terms(
            tariff=read_tariff(self.tariff),
            model=Model(self.model),
            period=Period(self.period),
            since=_time("--since", self.since),
            until=_time("--until", self.until),
            bills_failed=self.bills_failed,
            egress=Decimal(str(self.egress)),
        )


def _refuse(options: Mapping[str, object], why: str) -> None:
    """An option that would be ignored is a mistake, and its user should know."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        names = ", ".join("DATA" if name == "data" else f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{names} {why}")


def _time(option: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option} {text}: is to be a time such as 2026-11-01, or 2026-11-01T08:00") from None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def _predict(options: dict[str, Any], tariff: Path | None, model: Model) -> Document:
    from twinbus.pipeline.costs import charges  # noqa: PLC0415  # `serve` starts sooner without
    from twinbus.pipeline.costs.predicted import tell_prediction  # noqa: PLC0415
    from twinbus.pipeline.costs.setup import read_setup  # noqa: PLC0415
    from twinbus.pipeline.costs.tariff import read_tariff  # noqa: PLC0415
    from twinbus.pipeline.costs.what_if import predict  # noqa: PLC0415

    file = options.pop("setup")
    given = {name: value for name, value in options.items() if value is not None}
    return tell_prediction(predict(read_setup(file, given), read_tariff(tariff)), charges.Model(model))


def _explain(asked: _Asked, terms: _Terms) -> Document:
    from twinbus.pipeline.errors import PipelineError  # noqa: PLC0415  # `serve` starts sooner without

    if not asked.data:
        raise PipelineError("name the data folders of servers, as given to `twinbus serve --data`; or say --what-if")
    from twinbus.pipeline.costs.bill import SETTINGS  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    agreed = terms.read()
    with _progress() as tell:
        tell("starting Spark")
        with session("twinbus costs", master=asked.master, settings=SETTINGS) as spark:
            from twinbus.pipeline.costs.explained import tell_report  # noqa: PLC0415  # PySpark is there now
            from twinbus.pipeline.costs.report import Wanted, explain  # noqa: PLC0415

            wanted = Wanted(usage=asked.data, journals=asked.journals, terms=agreed, parquet=asked.parquet)
            return tell_report(explain(spark, wanted, tell))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is done now, and for how long."""
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda what: progress.update(task, description=what)


def _give(document: Document, html: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without

    from twinbus import __version__  # noqa: PLC0415
    from twinbus.pipeline.costs.page import write_page  # noqa: PLC0415

    console = Console()
    show(document, console if console.is_terminal else Console(width=_WIDTH))
    if html is not None:
        now = dt.datetime.now(dt.UTC)
        html.write_text(write_page(document, f"twinbus {__version__}, {now:%Y-%m-%d %H:%M} UTC"), encoding="utf-8")
        typer.echo(f"\nThe page is {html}", err=True)


# --- the report on the screen -----------------------------------------------------------------------------------------


def show(document: Document, console: Console) -> None:
    """Print it. Names that came from elsewhere are not taken for markup."""
    from rich.text import Text  # noqa: PLC0415  # `serve` starts sooner without

    console.print(Text(document.title, style="bold"))
    for name, value in document.facts:
        console.print(Text(f"  {name}: {value}"))
    for warning in document.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for section in document.sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        for paragraph in section.paragraphs:
            console.print(Text(paragraph))
        for table in section.tables:
            console.print(_table(table))


def _table(table: Table) -> ScreenTable:
    from rich.table import Table as ScreenTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = ScreenTable(title=Text(table.caption) if table.caption else None, title_justify="left", show_footer=False)
    for number, head in enumerate(table.heads):
        made.add_column(Text(head), justify="right" if table.is_number(number) else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        left = len(table.rows) - number - 1 if table.has_total else -1
        made.add_row(*map(Text, row), style="bold" if left == 0 else None, end_section=left == 1)
    return made
