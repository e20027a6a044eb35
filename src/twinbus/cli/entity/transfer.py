"""The commands `twinbus entity export` and `twinbus entity import`.

Owns the options, the progress display and the report. The formats of files are in `model.entity_file`; comparing and
changing entities is in the client library.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from functools import partial
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli import connection
from twinbus.cli.connection import Role
from twinbus.cli.entity.app import app, open_manager, with_manager
from twinbus.cli.output import (
    EXIT_FAILED,
    CommandFailed,
    JsonOption,
    Misuse,
    YesOption,
    confirm,
    examples,
    print_json,
    printable,
    run_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinbus.client import NamespaceManager
    from twinbus.client.management import EntityChange, Plan

FORMATS: Final = ("toml", "json")
PrefixOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Only queues and topics whose path starts so.", show_default=False)
]
WithKeysOption = Annotated[
    bool, typer.Option("--with-keys", help="Include the keys of queues and topics, with their secrets.")
]
_EXPORT_EXAMPLES: Final = examples(
    "twinbus entity export contoso.toml",
    "twinbus entity export --format json > Config.json",
)
_IMPORT_EXAMPLES: Final = examples(
    "twinbus entity import Config.json --dry-run",
    "twinbus entity import --from-namespace --source-profile azure",
)


@app.command("export", epilog=_EXPORT_EXAMPLES)
def export_entities(  # noqa: PLR0913  # one per option
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File ending in .toml or .json (default: standard output)."),
    ] = None,
    *,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="toml, or json for Config.json of Microsoft's emulator (default: from the name of FILE, or toml).",
        ),
    ] = None,
    prefix: PrefixOption = "",
    with_keys: WithKeysOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
) -> None:
    """Write the entities of a namespace to a file for twinbus serve --config or twinbus entity import."""

    async def use(manager: NamespaceManager) -> None:
        chosen = _format(file, file_format)
        if chosen == "json" and with_keys:
            raise Misuse("Config.json has no keys of entities: use TOML with --with-keys")
        if file is not None and file.exists() and not force:
            raise CommandFailed(f"{file} exists already: add --force to replace it")
        plan = await manager.export_entities(prefix, with_keys=with_keys)
        text = await _text(manager, plan, chosen)
        if file is None:
            typer.echo(text, nl=False)
        else:
            _write(file, text, is_secret=with_keys)
            typer.echo(f"{_count(len(plan.entities))} exported to {file}.")

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("export", find, use)


def _format(file: Path | None, text: str | None) -> str:
    chosen = text or (file.suffix.lower().removeprefix(".") if file is not None else "toml")
    if chosen not in FORMATS:
        raise Misuse(f"{chosen!r:.60} is not a format: use --format toml or --format json")
    return chosen


async def _text(manager: NamespaceManager, plan: Plan, chosen: str) -> str:
    from twinbus.client.management import write_emulator, write_toml  # noqa: PLC0415

    name = (await manager.get_namespace_info()).name
    if chosen == "toml":
        return write_toml(plan, name)
    text, omitted = write_emulator(plan, name)
    if omitted:
        typer.echo("Config.json has no key for these properties, which are left out:", err=True)
    for line in omitted:
        typer.echo(f"  {line}", err=True)
    return text


def _write(file: Path, text: str, *, is_secret: bool) -> None:
    """Replace the file atomically; only its owner may read a file with secrets."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_secret else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


@app.command("import", epilog=_IMPORT_EXAMPLES)
def import_entities(  # noqa: PLR0913  # one per option
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help=".toml file of twinbus, or Config.json of the emulator.")
    ] = None,
    *,
    from_namespace: Annotated[
        bool, typer.Option("--from-namespace", help="Read the entities of the source namespace instead of a file.")
    ] = False,
    source_connection_string: connection.SourceConnectionStringOption = None,
    source_ready_file: connection.SourceReadyFileOption = None,
    source_profile: connection.SourceProfileOption = None,
    prefix: PrefixOption = "",
    name: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Namespace in Config.json, if it has several.")
    ] = None,
    with_keys: WithKeysOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the differences and change nothing.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete all other entities of the namespace, with their messages.")
    ] = False,
    yes: YesOption = False,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create and update entities as in a file or in another namespace; the same import can be repeated.

    A refused entity does not stop the import; the exit code is then 1.
    """

    async def run() -> None:
        source = (source_connection_string, source_ready_file, source_profile)
        if (file is None) == (not from_namespace):
            raise Misuse("give either a FILE or --from-namespace")
        target = connection.find_target(connection_string, ready_file, profile, ca_file)
        if file is not None:
            plan = _read_file(file, name)
        else:
            async with open_manager(connection.find_target(*source, ca_file, role=Role.SOURCE)) as reader:
                plan = await reader.export_entities(prefix, with_keys=with_keys)
        async with open_manager(target) as manager:
            changes = await _import(manager, plan, dry_run=dry_run, prune=prune, yes=yes)
        if as_json:
            print_json({"dry_run": dry_run, "entities": [_change_json(change) for change in changes]})
        else:
            _print_changes(changes, dry_run=dry_run)
        if any(change.reason is not None for change in changes):
            raise typer.Exit(EXIT_FAILED)

    run_command("entity import", run)


def _read_file(file: Path, name: str | None) -> Plan:
    from twinbus.client.management import InvalidConfig, read_plan  # noqa: PLC0415
    from twinbus.server.config.file import check_rule  # noqa: PLC0415  # finds errors in SQL before anything changes

    try:
        return read_plan(file, name, check_rule)
    except InvalidConfig as error:
        raise Misuse(str(error)) from None


async def _import(
    manager: NamespaceManager, plan: Plan, *, dry_run: bool, prune: bool, yes: bool
) -> list[EntityChange]:
    from twinbus.client.management import ImportAction  # noqa: PLC0415

    if dry_run:
        return await manager.plan_import(plan, prune=prune)
    if prune:
        deleted = [
            change for change in await manager.plan_import(plan, prune=True) if change.action is ImportAction.DELETE
        ]
        if deleted:
            if not yes:
                _print_changes(deleted, dry_run=True)
            confirm(f"Delete {_count(len(deleted))} with their messages?", is_confirmed=yes)
    with _progress(len(plan.entities)) as advance:
        return await manager.import_entities(plan, prune=prune, on_change=advance)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[EntityChange], None]]:
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as display:
        task = display.add_task("", total=total)
        yield lambda change: display.update(task, advance=1, description=escape(change.path))


def _print_changes(changes: Sequence[EntityChange], *, dry_run: bool) -> None:
    counts = Counter(change.action.value for change in changes)
    for change in changes:
        if change.action.value != "unchanged":
            typer.echo(f"{change.action.value:<9} {change.kind} {printable(change.path)}")
        for text in (*change.differences, *([change.reason] if change.reason is not None else [])):
            typer.echo(f"          {printable(text)}")
    words = ", ".join(f"{count:,} {action}" for action, count in counts.items()) or "nothing to do"
    typer.echo(f"Dry run, nothing was changed: {words}." if dry_run else f"{words[0].upper()}{words[1:]}.")


def _change_json(change: EntityChange) -> dict[str, object]:
    return {
        "kind": change.kind,
        "path": change.path,
        "action": change.action.value,
        "differences": change.differences,
        "reason": change.reason,
    }


def _count(number: int) -> str:
    return f"{number:,} {'entity' if number == 1 else 'entities'}"
