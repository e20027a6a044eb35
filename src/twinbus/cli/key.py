"""The commands `twinbus key ...`: manage the keys of a namespace, on a running or a stopped server.

Owns the options, the output and the exit codes: 0 on success, 1 on failure, 2 for invalid options. Secrets are printed
only with --show, and are never arguments. A running server applies the change itself (`server.auth.key_socket`), so the
change is effective when the command returns. The key file of a stopped server is changed under the lock of its data
directory.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from twinbus.cli.output import CommandGroup, JsonOption, examples, fail, print_json, print_table
from twinbus.server.auth import key_file, key_socket
from twinbus.server.auth.key_file import KeyChangeRefused, KeyCommand
from twinbus.server.auth.key_socket import DATA_DIRECTORY, KeyCommandReply, KeyView
from twinbus.server.config.settings import StartError
from twinbus.server.runtime.data_directory import (
    KEY_SOCKET_FILE,
    KEYS_FILE,
    DataDirectoryInUse,
    lock_directory,
    unlock_directory,
)

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)

SERVER_START_TIMEOUT_S: Final = 10.0
"""How long to wait for a server that has locked the data directory but is not listening: it is starting or stopping."""
_POLL_INTERVAL_S: Final = 0.1

DEFAULT_DATA: Final = Path("twinbus-data/contoso")
"""Data directory of `twinbus serve` without arguments."""

DataOption = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        readable=False,  # the command itself reports missing permissions
        help="Data directory of the namespace, as given to twinbus serve.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")]
EntityOption = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Queue or topic whose own keys to use; the server must be running.",
        show_default="the whole namespace",
    ),
]
ShowOption = Annotated[
    bool, typer.Option("--show", help="Print secrets and, if the server is running, connection strings.")
]


@app.callback()
def key() -> None:
    """List, add, rotate and revoke the keys of a namespace.

    On a running server, changes are effective when the command returns. Connections with other keys stay open.
    """


@app.command("list", epilog=examples("twinbus key list"))
def list_keys(
    *,
    data: DataOption = DEFAULT_DATA,
    entity: EntityOption = "",
    show: ShowOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the keys of a namespace."""
    reply = _execute(data, KeyCommand("list", show=show, entity=entity))
    if as_json:
        print_json([_to_json_object(key_view) for key_view in reply.keys])
        return
    print_table(("name", "rights", "secrets", "changed"), map(_table_row, reply.keys))
    for key_view in reply.keys if show else ():
        typer.echo("")
        typer.echo(f"{key_view.name}:")
        _print_secrets(key_view)


@app.command(epilog=examples("twinbus key add application --rights Send,Listen"))
def add(
    name: NameArgument,
    *,
    rights: Annotated[
        str, typer.Option(metavar="RIGHTS", help="Send, Listen, Send,Listen, or Manage, which includes both.")
    ],
    data: DataOption = DEFAULT_DATA,
    entity: EntityOption = "",
    show: ShowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a key with a new secret."""
    parsed_rights = tuple(right.strip().capitalize() for right in rights.split(",") if right.strip())
    reply = _execute(data, KeyCommand("add", name, parsed_rights, show=show, entity=entity))
    key_view = _find_key(reply, name)
    if as_json:
        print_json({**_to_json_object(key_view), "is_effective": reply.pid is not None})
        return
    typer.echo(f"Added key {name} with {', '.join(key_view.rights)}. {_effect_message(reply)}")
    _print_secrets_or_hint(key_view, data, entity, show=show)


@app.command(epilog=examples("twinbus key rotate application"))
def rotate(
    name: NameArgument,
    *,
    data: DataOption = DEFAULT_DATA,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Generate a new secondary secret and keep the primary one.")
    ] = False,
    entity: EntityOption = "",
    show: ShowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Generate a new primary secret; the old primary secret becomes the secondary one.

    Clients with the old primary secret keep working. The old secondary secret is refused from now on.
    """
    reply = _execute(data, KeyCommand("rotate", name, secondary=secondary, show=show, entity=entity))
    if as_json:
        print_json({**_to_json_object(_find_key(reply, name)), "is_effective": reply.pid is not None})
        return
    if secondary:
        effect = "The secondary secret is new; the old one is no longer valid."
    else:
        effect = "The primary secret is new; the old one is valid as the secondary secret."
    typer.echo(f"Rotated key {name}. {effect} {_effect_message(reply)}")
    _print_secrets_or_hint(_find_key(reply, name), data, entity, show=show)


@app.command(epilog=examples("twinbus key revoke application --secondary --data /var/lib/twinbus/contoso"))
def revoke(
    name: NameArgument,
    *,
    data: DataOption = DEFAULT_DATA,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Revoke only the secondary secret, for example after a rotation.")
    ] = False,
    entity: EntityOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Revoke the key even if it is the last one with Manage.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key, or only its secondary secret.

    Revoked secrets, and tokens signed with them, are refused from now on. Links opened with them are closed.
    """
    reply = _execute(data, KeyCommand("revoke", name, secondary=secondary, force=force, entity=entity))
    if as_json:
        print_json({"name": name, "secondary_only": secondary, "is_effective": reply.pid is not None})
        return
    revoked = f"the secondary secret of key {name}" if secondary else f"key {name}"
    typer.echo(f"Revoked {revoked}. {_effect_message(reply)}")


# --- running a command ------------------------------------------------------------------------------------------------


def _execute(data: Path, order: KeyCommand) -> KeyCommandReply:
    try:
        _check_directory(data)
        deadline_s = time.monotonic() + SERVER_START_TIMEOUT_S
        while True:
            try:
                return key_socket.send_command(data / KEY_SOCKET_FILE, order) or _change_stopped(data, order)
            except DataDirectoryInUse as error:
                if time.monotonic() > deadline_s:
                    text = (
                        f"{data} is in use by process {error.owner}, which does not listen at {data / KEY_SOCKET_FILE}"
                    )
                    raise KeyChangeRefused(
                        f"{text}: it is still starting, or its supervisor has died; restart the server"
                    ) from None
                time.sleep(_POLL_INTERVAL_S)
    except PermissionError:
        fail(f"key {order.do}", _not_owner_error(data))
    except (KeyChangeRefused, StartError, OSError) as error:
        fail(f"key {order.do}", error)


def _check_directory(data: Path) -> None:
    if not data.is_dir():
        raise KeyChangeRefused(f"there is no data directory {data}: give --data as for twinbus serve")
    if not (data / "format").exists() or not (data / KEYS_FILE).exists():
        raise KeyChangeRefused(f"{data} is not a data directory with keys: give --data as for twinbus serve")


def _change_stopped(data: Path, order: KeyCommand) -> KeyCommandReply:
    if data.stat().st_uid != os.geteuid():
        raise PermissionError
    if order.entity:
        raise KeyChangeRefused(
            f"the server of {data} is not running: start it to list or change keys of queues and topics"
        )
    descriptor = lock_directory(data)
    try:
        rules = key_file.read_rules(data / KEYS_FILE)
        after = key_file.apply_command(rules, order, dt.datetime.now(dt.UTC))
        if after != rules:
            key_file.write_rules(data / KEYS_FILE, after)
    finally:
        unlock_directory(descriptor)
    return KeyCommandReply(tuple(_shown_key(rule, order) for rule in after))


def _shown_key(rule: key_file.KeyRule, order: KeyCommand) -> KeyView:
    return key_socket.make_key_view(rule, include_secrets=order.show)


def _not_owner_error(data: Path) -> KeyChangeRefused:
    try:
        owner = f"user {data.stat().st_uid}, who owns it"
    except OSError:
        owner = "its owner"
    return KeyChangeRefused(f"user {os.geteuid()} may not use {data}: run this command as {owner}")


# --- output -----------------------------------------------------------------------------------------------------------


def _find_key(reply: KeyCommandReply, name: str) -> KeyView:
    return next(key_view for key_view in reply.keys if key_view.name == name)


def _effect_message(reply: KeyCommandReply) -> str:
    if reply.pid is None:
        return "The server is not running: effective at its next start."
    return f"Effective now (process {reply.pid})."


def _table_row(key_info: KeyView) -> tuple[str, str, str, str]:
    if key_info.source != DATA_DIRECTORY:
        return key_info.name, ", ".join(key_info.rights), f"in the {key_info.source}", ""
    secrets = "primary, secondary" if key_info.has_secondary else "primary"
    return key_info.name, ", ".join(key_info.rights), secrets, key_info.changed or "unknown"


def _to_json_object(key_info: KeyView) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(key_info)
    return {name: value for name, value in fields.items() if value is not None}


def _print_secrets(key_info: KeyView) -> None:
    if key_info.source != DATA_DIRECTORY:
        typer.echo(f"  the secrets are in the {key_info.source}")
        return
    for title, text in (
        ("primary", key_info.primary),
        ("secondary", key_info.secondary),
        ("connection string", key_info.connection_string),
    ):
        if text is not None:
            typer.echo(f"  {title}: {text}")


def _print_secrets_or_hint(key_info: KeyView, data: Path, entity: str, *, show: bool) -> None:
    if show:
        _print_secrets(key_info)
    else:
        typer.echo(f"To see the secrets: twinbus key list --data {data}{entity and f' --entity {entity}'} --show")
