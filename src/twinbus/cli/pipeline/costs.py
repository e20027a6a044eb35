"""The command `twinbus pipeline costs`: the costs of recorded usage, or a prediction for a pair.

Owns the options and the output. With `--what-if` the command needs neither Spark nor Java.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import typer

from twinbus.cli.output import JsonOption, examples, print_json
from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console
    from rich.table import Table as ScreenTable

    from twinbus.pipeline.costs.bill import BillingTerms
    from twinbus.pipeline.costs.document import Document, Table

_DEFAULT_WIDTH: Final = 160
"""Width of the output if it does not go to a terminal."""
ModelName: TypeAlias = Literal["operation", "document"]
PeriodName: TypeAlias = Literal["day", "hour"]


def _what_if_option(help_text: str) -> Any:  # noqa: ANN401  # like typer.Option
    return typer.Option(metavar="N", min=0, help=f"What if: {help_text}.")


def _percent_option(help_text: str) -> Any:  # noqa: ANN401
    return typer.Option(metavar="PERCENT", min=0, max=100, help=help_text)


@app.command(
    epilog=examples(
        "twinbus pipeline costs data/contoso --html costs.html",
        "twinbus pipeline costs --what-if --messages 20000000 --clients 8",
    )
)
def costs(  # noqa: PLR0913  # one per option
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA]...", help="Data directories of servers, as given to `serve --data`."),
    ] = None,
    *,
    journals: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Journals of clients (`journal_dir`), for outages and pings; repeatable."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start of the period, such as 2026-11-01 or 2026-11-01T08:00 (UTC)."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End of the period, exclusive (UTC).")] = None,
    model: Annotated[ModelName, typer.Option(help="Billing model of the bill; the report shows both.")] = "operation",
    tariff: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Price list (default: the one that comes with twinbus).")
    ] = None,
    failed_calls: Annotated[
        bool | None, typer.Option("--failed-calls/--no-failed-calls", help="Whether failed calls are charged.")
    ] = None,
    egress: Annotated[
        float | None, _percent_option("Share of the received data that leaves the region (default: 0).")
    ] = None,
    period: Annotated[PeriodName, typer.Option(help="Period of each FOCUS row.")] = "day",
    parquet: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write FOCUS rows as Parquet to this folder.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with charts to this file.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Predict the bill of a pair instead.")] = False,
    setup: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What if: TOML file that describes the pair; options override it."),
    ] = None,
    days: Annotated[int | None, _what_if_option("days per month (default: 30)")] = None,
    messages: Annotated[int | None, _what_if_option("messages per month (default: 1,000,000)")] = None,
    size: Annotated[int | None, _what_if_option("bytes per message (default: 1,024)")] = None,
    subscriptions: Annotated[
        int | None, _what_if_option("subscriptions that match each message (default: none, a queue)")
    ] = None,
    peek_lock: Annotated[
        bool | None, typer.Option("--peek-lock/--receive-and-delete", help="What if: receive mode of the applications.")
    ] = None,
    parked: Annotated[
        float | None, _percent_option("What if: share of messages that are parked (default: from the outages).")
    ] = None,
    outage_minutes: Annotated[
        list[float] | None, typer.Option(metavar="N", help="What if: duration of an outage; repeatable.")
    ] = None,
    entities: Annotated[int | None, _what_if_option("entities that are unavailable in an outage (default: 1)")] = None,
    clients: Annotated[int | None, _what_if_option("clients (default: 1)")] = None,
    factories: Annotated[int | None, _what_if_option("factories per client (default: 1)")] = None,
    ping_seconds: Annotated[int | None, _what_if_option("seconds between pings (default: 60)")] = None,
    queues: Annotated[int | None, _what_if_option("backlog queues (default: 10)")] = None,
    hosts: Annotated[int | None, _what_if_option("programs that run the syphon (default: 1)")] = None,
    poll_minutes: Annotated[int | None, _what_if_option("minutes per poll of the syphon (default: 15)")] = None,
    processes: Annotated[int | None, _what_if_option("starts of paired programs (default: 1)")] = None,
    missing_queues: Annotated[int | None, _what_if_option("backlog queues that must be created (default: 0)")] = None,
    parking_bytes: Annotated[int | None, _what_if_option("bytes that parking adds to a message (default: 256)")] = None,
    other_operations: Annotated[int | None, _what_if_option("other operations of the account (default: 0)")] = None,
    premium_units: Annotated[
        int | None, _what_if_option("Premium messaging units to compare with (default: 1)")
    ] = None,
    as_json: JsonOption = False,
    master: MasterOption = None,
) -> None:
    """Report the costs of namespaces by entity, outage and stage, or predict the costs of a pair."""
    what_if_options = {
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
    usage_options = {"journals": journals, "parquet": parquet, "since": since, "until": until, "master": master}
    with reported_errors("costs"):
        if what_if:
            _reject_options({"data": data, **usage_options}, "cannot be used with --what-if: leave it out")
            common_options = {"failed_calls": failed_calls, "egress": egress}
            document = _predict({**what_if_options, **common_options}, tariff, model)
        else:
            _reject_options(what_if_options, "is only for predictions: add --what-if or leave it out")
            inputs = _Inputs(data or [], journals or [], parquet, master)
            terms = _BillingOptions(tariff, model, period, since, until, failed_calls is not False, egress or 0.0)
            document = _explain(inputs, terms)
        _output(document, html, as_json=as_json)


class _Inputs(NamedTuple):
    """Input and output folders, and the Spark master."""

    data_folders: list[str]
    journal_folders: list[str]
    parquet_folder: str | None
    master: str | None


class _BillingOptions(NamedTuple):
    """Options for a bill, not yet validated."""

    tariff: Path | None
    model: ModelName
    period: PeriodName
    since: str | None
    until: str | None
    bills_failed: bool
    egress_percent: float

    def parse(self) -> BillingTerms:
        """Validate the options and return the terms of the bill."""
        from twinbus.pipeline.costs.bill import BillingTerms  # noqa: PLC0415
        from twinbus.pipeline.costs.charges import Model  # noqa: PLC0415  # `serve` starts faster
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
    """Raise ValueError if one of the options is set, since the command would ignore that option."""
    set_options = [name for name, value in options.items() if value is not None]
    if set_options:
        names = ", ".join("DATA" if name == "data" else f"--{name.replace('_', '-')}" for name in set_options)
        raise ValueError(f"{names} {reason}")


def _parse_time(option: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option} {text}: give a time such as 2026-11-01 or 2026-11-01T08:00") from None
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)


def _predict(options: dict[str, Any], tariff: Path | None, model: ModelName) -> Document:
    from twinbus.pipeline.costs import charges  # noqa: PLC0415  # `serve` starts faster
    from twinbus.pipeline.costs.prediction_document import prediction_document  # noqa: PLC0415
    from twinbus.pipeline.costs.setup import read_setup  # noqa: PLC0415
    from twinbus.pipeline.costs.tariff import read_tariff  # noqa: PLC0415
    from twinbus.pipeline.costs.what_if import predict  # noqa: PLC0415

    file = options.pop("setup")
    set_options = {name: value for name, value in options.items() if value is not None}
    return prediction_document(predict(read_setup(file, set_options), read_tariff(tariff)), charges.Model(model))


def _explain(inputs: _Inputs, billing_options: _BillingOptions) -> Document:
    from twinbus.pipeline.errors import PipelineError  # noqa: PLC0415  # `serve` starts faster

    if not inputs.data_folders:
        raise PipelineError("give the data directories of servers, as for `twinbus serve --data`, or --what-if")
    from twinbus.pipeline.costs.bill import SPARK_SETTINGS  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    terms = billing_options.parse()
    with _progress() as show_step:
        show_step("starting Spark")
        with session("twinbus costs", master=inputs.master, settings=SPARK_SETTINGS) as spark:
            from twinbus.pipeline.costs.report import CostReportSettings, explain  # noqa: PLC0415
            from twinbus.pipeline.costs.report_document import report_document  # noqa: PLC0415  # needs PySpark

            settings = CostReportSettings(
                usage_folders=inputs.data_folders,
                journal_folders=inputs.journal_folders,
                terms=terms,
                parquet_folder=inputs.parquet_folder,
            )
            return report_document(explain(spark, settings, show_step))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show a spinner; yield a function that sets its text."""
    from rich.console import Console  # noqa: PLC0415  # `serve` starts faster
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda text: progress.update(task, description=text)


def _output(document: Document, html: Path | None, *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts faster

    from twinbus import __version__  # noqa: PLC0415
    from twinbus.pipeline.costs.html_page import render_page  # noqa: PLC0415

    console = Console()
    if as_json:
        print_json(document_json(document))
    else:
        show(document, console if console.is_terminal else Console(width=_DEFAULT_WIDTH))
    if html is not None:
        now = dt.datetime.now(dt.UTC)
        html.write_text(render_page(document, f"twinbus {__version__}, {now:%Y-%m-%d %H:%M} UTC"), encoding="utf-8")
        typer.echo(f"\nWrote {html}", err=True)


# --- output -----------------------------------------------------------------------------------------------------------


def document_json(document: Document) -> dict[str, object]:
    """Return a document as JSON: each row of a table is an object with the heads of its columns."""
    return {
        "title": document.title,
        "facts": dict(document.facts),
        "warnings": document.warnings,
        "sections": [
            {
                "title": section.title,
                "paragraphs": section.paragraphs,
                "tables": [
                    {
                        "caption": table.caption,
                        "rows": [dict(zip(table.headers, row, strict=False)) for row in table.rows],
                    }
                    for table in section.tables
                ],
            }
            for section in document.sections
        ],
    }


def show(document: Document, console: Console) -> None:
    """Print a document, whose texts are not interpreted as rich markup."""
    from rich.text import Text  # noqa: PLC0415  # `serve` starts faster

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

    screen_table = ScreenTable(
        title=Text(table.caption) if table.caption else None, title_justify="left", show_footer=False
    )
    for number, head in enumerate(table.headers):
        screen_table.add_column(Text(head), justify="right" if table.is_numeric(number) else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        left = len(table.rows) - number - 1 if table.has_total else -1
        screen_table.add_row(*map(Text, row), style="bold" if left == 0 else None, end_section=left == 1)
    return screen_table
