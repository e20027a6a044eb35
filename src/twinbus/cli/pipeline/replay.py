"""The command `twinbus pipeline replay`: send captured messages to an entity.

Owns the options, the output and the exit codes: 0 if all messages were sent, 1 on errors that the user can fix. Reading
the files is in `twinbus.pipeline.capture.replay`.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli import connection
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.output import JsonOption, examples, print_json
from twinbus.cli.pipeline.app import MasterOption, app, reported_errors, single_ca_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from twinbus.pipeline.capture.manifest import Manifest


@app.command(
    cls=accepting("--connection-string"),
    epilog=examples("twinbus pipeline replay /srv/captured orders --to orders-copy --dry-run"),
)
def replay(  # noqa: PLR0913  # one per option
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder to which `capture` wrote.")],
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="The entity that was captured.")],
    *,
    to: Annotated[
        str | None, typer.Option(metavar="ENTITY", help="Queue or topic to send to (default: that of ENTITY).")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only messages enqueued at or after this time, such as 2026-11-17T08:00 (UTC)."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only messages enqueued before this time.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="SQL", help="Only rows that match this condition, such as \"label = 'order'\"."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Captured namespace, if FOLDER has several.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages without sending them.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the sink, such as secondaryConnectionString; repeatable."),
    ] = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
    master: MasterOption = None,
) -> None:
    """Send captured messages to an entity unchanged: all, those of a period, or those that match a filter."""
    with reported_errors("replay"):
        from twinbus.model.path import parent_entity  # noqa: PLC0415  # `serve` starts faster
        from twinbus.pipeline.capture.folder import Folder  # noqa: PLC0415
        from twinbus.pipeline.capture.replay import (  # noqa: PLC0415
            find_entity_folder,
            find_files,
            read_rows,
        )
        from twinbus.pipeline.sink.options import read_options  # noqa: PLC0415
        from twinbus.pipeline.spark import session  # noqa: PLC0415

        target = connection.find_target(connection_string, ready_file, profile, ca_file)
        options = {
            "connectionString": target.connection_string,
            "entity": to or parent_entity(entity),
            **_parse_options(option or ()),
        }
        trusted = single_ca_file(target)
        if trusted is not None:
            options["caFile"] = trusted
        read_options(options)  # invalid options fail here, before Spark starts
        times = {"since": _parse_time("--since", since), "until": _parse_time("--until", until)}
        folder = Folder(source)
        files = find_files(folder, find_entity_folder(folder, entity, namespace), entity, **times)
        _print_files(entity, files, is_note=as_json)
        messages = 0
        if files:
            with session("twinbus replay", master=master) as spark:
                rows = read_rows(spark, folder, files, **times, where=where)
                messages = rows.count() if dry_run else _send(rows, options)
        if as_json:
            print_json({"files": len(files), "messages": messages, "dry_run": dry_run})
        elif files:
            typer.echo(f"{messages:,} messages {'would be' if dry_run else 'were'} sent.")


def _parse_time(name: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.60}; it must be a time such as 2026-11-17T08:00") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def _parse_options(texts: Sequence[str]) -> dict[str, str]:
    options = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--option {name!r:.60} has no value: use NAME=VALUE, such as messageIds=given")
        options[name] = value
    return options


def _print_files(entity: str, files: Sequence[Manifest], *, is_note: bool) -> None:
    if not files:
        typer.echo(f"No captured file of '{entity}' has messages of that period.", err=is_note)
        return
    first, last = min(file.first_enqueued for file in files), max(file.last_enqueued for file in files)
    messages, size = sum(file.eventCount for file in files), sum(file.sizeInBytes for file in files)
    typer.echo(
        f"Found {len(files):,} files with {messages:,} messages in {size:,} bytes, from {first:%Y-%m-%d %H:%M:%S} to "
        f"{last:%Y-%m-%d %H:%M:%S} UTC; starting Spark",
        err=True,
    )


def _send(rows: DataFrame, options: Mapping[str, str]) -> int:
    """Send the rows, and return their number."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql.functions import count, lit  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from twinbus.pipeline.capture.replay import send_rows  # noqa: PLC0415

    observation = Observation("replay")
    with Console(stderr=True).status("sending"):
        send_rows(rows.observe(observation, count(lit(1)).alias("messages")), options)
    return int(observation.get["messages"])
