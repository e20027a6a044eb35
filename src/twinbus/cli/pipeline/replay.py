"""`twinbus pipeline replay`: captured files back into an entity.

Owns: the options as they are typed, what is shown, and the exit codes: 0 when all is sent; 1 where something has to be
mended. What is read, and how, is in `twinbus.pipeline.capture.replay`.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from twinbus.pipeline.capture.manifest import Manifest


@app.command()
def replay(  # noqa: PLR0913  # as many as there are options
    connection: Annotated[
        str,
        typer.Argument(
            metavar="CONNECTION_STRING", help="Of the namespace to send to.", envvar="TWINBUS_CONNECTION_STRING"
        ),
    ],
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Where `capture` wrote to.")],
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="The entity that was captured.")],
    *,
    to: Annotated[
        str | None, typer.Option(metavar="ENTITY", help="The queue or topic to send to; if not said, that of ENTITY.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was enqueued from then on: 2026-11-17T08:00, in UTC.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only what was enqueued before.")] = None,
    where: Annotated[
        str | None, typer.Option("--filter", metavar="SQL", help="Only rows of which this holds: \"label = 'order'\".")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="The namespace that was captured, if there are several.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and send nothing.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="More options for writing, as secondaryConnectionString; repeatable."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file.")
    ] = None,
    master: MasterOption = None,
) -> None:
    """Send captured messages to an entity, as they were: all of them, those of some time, or those of a filter."""
    with reported_errors("replay"):
        from twinbus.model.path import parent_entity  # noqa: PLC0415  # `serve` starts sooner without
        from twinbus.pipeline.capture.folder import Folder  # noqa: PLC0415
        from twinbus.pipeline.capture.replay import (  # noqa: PLC0415
            find_entity_folder,
            find_files,
            read_rows,
        )
        from twinbus.pipeline.sink.options import read_options  # noqa: PLC0415
        from twinbus.pipeline.spark import session  # noqa: PLC0415

        options = {
            "connectionString": connection,
            "entity": to or parent_entity(entity),
            **_parse_options(option or ()),
        }
        if ca_file is not None:
            options["caFile"] = str(ca_file)
        read_options(options)  # what is wrong with them is known before Spark starts
        times = {"since": _parse_time("--since", since), "until": _parse_time("--until", until)}
        folder = Folder(source)
        files = find_files(folder, find_entity_folder(folder, entity, namespace), entity, **times)
        _print_files(entity, files)
        if files:
            with session("twinbus replay", master=master) as spark:
                rows = read_rows(spark, folder, files, **times, where=where)
                _print_count(rows) if dry_run else _send(rows, options)


def _parse_time(name: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.60}; it is a time like 2026-11-17T08:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _parse_options(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--option {name!r:.60} has no value: it is like messageIds=given")
        found[name] = value
    return found


def _print_files(entity: str, files: Sequence[Manifest]) -> None:
    if not files:
        typer.echo(f"No captured file of '{entity}' has messages of that time.")
        return
    first, last = min(one.first_enqueued for one in files), max(one.last_enqueued for one in files)
    messages, size = sum(one.eventCount for one in files), sum(one.sizeInBytes for one in files)
    typer.echo(
        f"{len(files):,} files have {messages:,} messages in {size:,} bytes, from {first:%Y-%m-%d %H:%M:%S} to "
        f"{last:%Y-%m-%d %H:%M:%S} UTC; Spark starts",
        err=True,
    )


def _print_count(rows: DataFrame) -> None:
    typer.echo(f"{rows.count():,} messages would be sent.")


def _send(rows: DataFrame, options: Mapping[str, str]) -> None:
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql.functions import count, lit  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from twinbus.pipeline.capture.replay import send_rows  # noqa: PLC0415

    seen = Observation("replay")
    with Console(stderr=True).status("sending"):
        send_rows(rows.observe(seen, count(lit(1)).alias("messages")), options)
    typer.echo(f"{seen.get['messages']:,} messages were sent.")
