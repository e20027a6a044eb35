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

from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console
    from rich.table import Table as ScreenTable

    from twinbus.pipeline.costs.bill import BillingTerms
    from twinbus.pipeline.costs.document import Document, Table

_DEFAULT_WIDTH: Final = 160
"""Characters, where the output is no screen and does not say how wide it is."""
ModelName: TypeAlias = Literal["operation", "document"]
PeriodName: TypeAlias = Literal["day", "hour"]


def _what_if_option(help_text: str) -> Any:  # noqa: ANN401  # as typer's own
    return typer.Option(metavar="N", min=0, help=f"What if: {help_text}.")


def _percent_option(help_text: str) -> Any:  # noqa: ANN401
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
    model: Annotated[ModelName, typer.Option(help="Which model bills are made by; both are shown.")] = "operation",
    tariff: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prices; without, the list that comes with twinbus.")
    ] = None,
    failed_calls: Annotated[
        bool | None, typer.Option("--failed-calls/--no-failed-calls", help="Calls that failed are charged, or not.")
    ] = None,
    egress: Annotated[
        float | None, _percent_option("How much of what applications receive leaves the region; 0 without.")
    ] = None,
    period: Annotated[PeriodName, typer.Option(help="What a FOCUS row is about.")] = "day",
    parquet: Annotated[str | None, typer.Option(metavar="DIR", help="Write FOCUS rows there, as Parquet.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page with charts there.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Predict the bill of a pair instead.")] = False,
    setup: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What if: the pair, as TOML; options below win over it.")
    ] = None,
    days: Annotated[int | None, _what_if_option("days of a month; 30")] = None,
    messages: Annotated[int | None, _what_if_option("messages in a month; 1,000,000")] = None,
    size: Annotated[int | None, _what_if_option("bytes of a message; 1,024")] = None,
    subscriptions: Annotated[
        int | None, _what_if_option("those that want each message; without, it goes to a queue")
    ] = None,
    peek_lock: Annotated[
        bool | None, typer.Option("--peek-lock/--receive-and-delete", help="What if: how applications receive.")
    ] = None,
    parked: Annotated[
        float | None, _percent_option("What if: how many of the messages; without, as long as outages last.")
    ] = None,
    outage_minutes: Annotated[
        list[float] | None, typer.Option(metavar="N", help="What if: how long an outage lasts; repeatable.")
    ] = None,
    entities: Annotated[int | None, _what_if_option("entities that an outage makes unavailable; 1")] = None,
    clients: Annotated[int | None, _what_if_option("clients; 1")] = None,
    factories: Annotated[int | None, _what_if_option("factories of each client; 1")] = None,
    ping_seconds: Annotated[int | None, _what_if_option("seconds between pings; 60")] = None,
    queues: Annotated[int | None, _what_if_option("backlog queues; 10")] = None,
    hosts: Annotated[int | None, _what_if_option("programs that run the syphon; 1")] = None,
    poll_minutes: Annotated[int | None, _what_if_option("how long a poll of the syphon lasts; 15")] = None,
    processes: Annotated[int | None, _what_if_option("starts of programs that pair; 1")] = None,
    missing_queues: Annotated[int | None, _what_if_option("backlog queues that have to be created; 0")] = None,
    parking_bytes: Annotated[int | None, _what_if_option("what a message grows by when it is parked; 256")] = None,
    other_operations: Annotated[int | None, _what_if_option("operations of the account beside these; 0")] = None,
    premium_units: Annotated[int | None, _what_if_option("messaging units of Premium to compare with; 1")] = None,
    master: MasterOption = None,
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
    with reported_errors("costs"):
        if what_if:
            _reject_options({"data": data, **of_usage}, "is not for a prediction: leave it out")
            of_both = {"failed_calls": failed_calls, "egress": egress}
            document = _predict({**of_pair, **of_both}, tariff, model)
        else:
            _reject_options(of_pair, "is for a prediction: say --what-if, or leave it out")
            asked = _Inputs(data or [], journals or [], parquet, master)
            terms = _BillingOptions(tariff, model, period, since, until, failed_calls is not False, egress or 0.0)
            document = _explain(asked, terms)
        _output(document, html)


class _Inputs(NamedTuple):
    """What is read, and where it goes."""

    data_folders: list[str]
    journal_folders: list[str]
    parquet_folder: str | None
    master: str | None


class _BillingOptions(NamedTuple):
    """What a bill is made by, as it was typed."""

    tariff: Path | None
    model: ModelName
    period: PeriodName
    since: str | None
    until: str | None
    bills_failed: bool
    egress_percent: float

    def parse(self) -> BillingTerms:
        """Checked."""
        from twinbus.pipeline.costs.bill import BillingTerms  # noqa: PLC0415
        from twinbus.pipeline.costs.charges import Model  # noqa: PLC0415  # `serve` starts sooner without
        from twinbus.pipeline.costs.operation_kinds import Period  # noqa: PLC0415
        from twinbus.pipeline.costs.tariff import read_tariff  # noqa: PLC0415

        return BillingTerms(
            tariff=read_tariff(self.tariff),
            model=Model(self.model),
            period=Period(self.period),
            since=_parse_time("--since", self.since),
            until=_parse_time("--until", self.until),
            bills_failed=self.bills_failed,
            egress_percent=Decimal(str(self.egress_percent)),
        )


def _reject_options(options: Mapping[str, object], reason: str) -> None:
    """An option that would be ignored is a mistake, and its user should know."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        names = ", ".join("DATA" if name == "data" else f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{names} {reason}")


def _parse_time(option: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option} {text}: is to be a time such as 2026-11-01, or 2026-11-01T08:00") from None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def _predict(options: dict[str, Any], tariff: Path | None, model: ModelName) -> Document:
    from twinbus.pipeline.costs import charges  # noqa: PLC0415  # `serve` starts sooner without
    from twinbus.pipeline.costs.prediction_document import prediction_document  # noqa: PLC0415
    from twinbus.pipeline.costs.setup import read_setup  # noqa: PLC0415
    from twinbus.pipeline.costs.tariff import read_tariff  # noqa: PLC0415
    from twinbus.pipeline.costs.what_if import predict  # noqa: PLC0415

    file = options.pop("setup")
    given = {name: value for name, value in options.items() if value is not None}
    return prediction_document(predict(read_setup(file, given), read_tariff(tariff)), charges.Model(model))


def _explain(inputs: _Inputs, billing_options: _BillingOptions) -> Document:
    from twinbus.pipeline.errors import PipelineError  # noqa: PLC0415  # `serve` starts sooner without

    if not inputs.data_folders:
        raise PipelineError("name the data folders of servers, as given to `twinbus serve --data`; or say --what-if")
    from twinbus.pipeline.costs.bill import SPARK_SETTINGS  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    agreed = billing_options.parse()
    with _progress() as tell:
        tell("starting Spark")
        with session("twinbus costs", master=inputs.master, settings=SPARK_SETTINGS) as spark:
            from twinbus.pipeline.costs.report import CostReportSettings, explain  # noqa: PLC0415
            from twinbus.pipeline.costs.report_document import report_document  # noqa: PLC0415  # PySpark is there now

            wanted = CostReportSettings(
                usage_folders=inputs.data_folders,
                journal_folders=inputs.journal_folders,
                terms=agreed,
                parquet_folder=inputs.parquet_folder,
            )
            return report_document(explain(spark, wanted, tell))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is done now, and for how long."""
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda what: progress.update(task, description=what)


def _output(document: Document, html: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without

    from twinbus import __version__  # noqa: PLC0415
    from twinbus.pipeline.costs.html_page import render_page  # noqa: PLC0415

    console = Console()
    show(document, console if console.is_terminal else Console(width=_DEFAULT_WIDTH))
    if html is not None:
        now = dt.datetime.now(dt.UTC)
        html.write_text(render_page(document, f"twinbus {__version__}, {now:%Y-%m-%d %H:%M} UTC"), encoding="utf-8")
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
            console.print(_screen_table(table))


def _screen_table(table: Table) -> ScreenTable:
    from rich.table import Table as ScreenTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = ScreenTable(title=Text(table.caption) if table.caption else None, title_justify="left", show_footer=False)
    for number, head in enumerate(table.headers):
        made.add_column(Text(head), justify="right" if table.is_numeric(number) else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        left = len(table.rows) - number - 1 if table.has_total else -1
        made.add_row(*map(Text, row), style="bold" if left == 0 else None, end_section=left == 1)
    return made
