"""The commands `twinbus profile ...`: named connections in the user's configuration folder.

Owns the options and the output. The file is in `profiles`; how commands choose a profile is in `connection`. No output
contains a key.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli import connection, profiles
from twinbus.cli.output import (
    CommandFailed,
    CommandGroup,
    JsonOption,
    Misuse,
    examples,
    print_json,
    print_table,
    run_command,
)

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=connection.complete_profile)
]
_ADD_EXAMPLES: Final = examples(
    "twinbus profile add local --ready-file twinbus-data/contoso.json --use",
    "twinbus profile add staging --ca-file ca.pem < connection-string.txt",
)


@app.callback()
def profile() -> None:
    """Manage named connections, which commands use with --profile NAME."""


@app.command(epilog=_ADD_EXAMPLES)
def add(
    name: NameArgument,
    *,
    connection_string: connection.ConnectionStringOption = None,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin-connection-string",
            metavar="TEXT",
            help="Connection string for administration, if it has another port; - reads the second line of stdin.",
        ),
    ] = None,
    ready_file: connection.ReadyFileOption = None,
    ca_file: connection.CaFileOption = None,
    use: Annotated[bool, typer.Option("--use", help="Make this the default profile.")] = False,
    should_replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of the same name.")] = False,
) -> None:
    """Add a profile from a ready file, TWINBUS_CONNECTION_STRING, or a connection string on stdin."""

    def run() -> None:
        profiles.check_name(name)
        current = profiles.read_profiles()
        if name in current.by_name and not should_replace:
            raise CommandFailed(f"there is a profile {name!r} already: add --replace to replace it")
        target = _read_target(connection_string, admin, ready_file).with_ca_files(ca_file or ())
        admin_string = target.admin_connection_string
        added = profiles.Profile(
            target.connection_string,
            None if admin_string == target.connection_string else admin_string,
            tuple(_readable(file) for file in target.ca_files),
            target.namespace,
        )
        default = name if use else current.default
        profiles.write_profiles(profiles.Profiles({**current.by_name, name: added}, default))
        hint = "the default" if default == name else f"use it with --profile {name}"
        typer.echo(f"Added profile {name} from {target.source}: {hint}.")

    run_command("profile add", run)


@app.command("list", epilog=examples("twinbus profile list"))
def list_profiles(*, as_json: JsonOption = False) -> None:
    """List the profiles."""

    def run() -> None:
        current = profiles.read_profiles()
        rows = [_describe(name, one, current.default) for name, one in sorted(current.by_name.items())]
        if as_json:
            print_json(rows)
        elif not rows:
            typer.echo("There are no profiles: add one with twinbus profile add.")
        else:
            columns = ("name", "endpoint", "key", "default")
            print_table(columns, [(*(row[column] for column in columns[:3]), row["is_default"]) for row in rows])

    run_command("profile list", run)


@app.command(epilog=examples("twinbus profile show local"))
def show(name: NameArgument, *, as_json: JsonOption = False) -> None:
    """Show a profile without its secrets."""

    def run() -> None:
        current = profiles.read_profiles()
        row = _describe(name, _find(current, name), current.default)
        if as_json:
            print_json(row)
        else:
            row["ca_files"] = ", ".join(map(str, row["ca_files"])) or None  # type: ignore[call-overload]
            print_table(("property", "value"), [(key.replace("_", " "), value) for key, value in row.items()])

    run_command("profile show", run)


@app.command(epilog=examples("twinbus profile use local"))
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=connection.complete_profile),
    ] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Have no default profile any more.")] = False,
) -> None:
    """Make a profile the default of all commands."""

    def run() -> None:
        if (name is None) != none:
            raise Misuse("give the NAME of a profile, or --none")
        current = profiles.read_profiles()
        if name is not None:
            _find(current, name)
        profiles.write_profiles(replace(current, default=name))
        typer.echo("There is no default profile now." if name is None else f"Profile {name} is the default now.")

    run_command("profile use", run)


@app.command(epilog=examples("twinbus profile remove staging"))
def remove(name: NameArgument) -> None:
    """Remove a profile with its secrets."""

    def run() -> None:
        current = profiles.read_profiles()
        _find(current, name)
        rest = {key: value for key, value in current.by_name.items() if key != name}
        profiles.write_profiles(profiles.Profiles(rest, None if current.default == name else current.default))
        typer.echo(f"Removed profile {name}.")

    run_command("profile remove", run)


def _find(current: profiles.Profiles, name: str) -> profiles.Profile:
    found = current.by_name.get(name)
    if found is None:
        known = ", ".join(current.by_name) or "none"
        raise CommandFailed(f"there is no profile {name!r:.80} (profiles: {known})")
    return found


def _describe(name: str, one: profiles.Profile, default: str | None) -> dict[str, object]:
    from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `--help` starts faster

    try:
        parsed = ConnectionString.parse(one.connection_string)
    except ValueError:
        raise CommandFailed(f"profile {name} has an invalid connection string: replace it with profile add") from None
    endpoint = parsed.host if parsed.port is None else f"{parsed.host}:{parsed.port}"
    return {
        "name": name,
        "namespace": one.namespace,
        "endpoint": endpoint,
        "key": parsed.key_name or "a signature",
        "entity": parsed.entity_path,
        "has_tls": not parsed.is_emulator,
        "ca_files": one.ca_files,
        "is_default": name == default,
    }


def _read_target(text: str | None, admin: str | None, ready_file: Path | None) -> connection.Target:
    """Return the namespace for a new profile; unlike other commands, `add` does not look at other profiles."""
    if ready_file is not None:
        if text is not None or admin is not None:
            raise Misuse("give only one of --ready-file and connection strings")
        target = connection.target_from_ready_file(ready_file)
    else:
        variable = connection.Role.PRIMARY.variable("CONNECTION_STRING")
        source = "--connection-string"
        if text is None and os.environ.get(variable):
            text, source = os.environ[variable], variable
        elif text is None or text == connection.STDIN:
            text, source = _read_secret(), "stdin"
        admin = connection.read_connection_string_from_stdin() if admin == connection.STDIN else admin
        target = connection.Target(text, admin or text, (), source)
    connection.check_target(target)
    return target


def _read_secret() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("Connection string: ").strip()
    return connection.read_connection_string_from_stdin()


def _readable(file: Path) -> str:
    """Return the absolute path, so that commands find the file from any folder."""
    if not file.is_file():
        raise CommandFailed(f"there is no CA file {file}")
    return str(file.absolute())
