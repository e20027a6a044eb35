"""`twinbus key`: the keys of a namespace, on a running server or a stopped one.

Owns: the options as they are typed, what is printed, and the exit codes: 0 if it was done, 1 if not, 2 for options that
cannot be. Secrets are printed only with --show, and none is ever an argument. A running server makes the change itself
(`server.key_socket`), so it is effective when the command ends; the file of a stopped one is changed under its lock.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from twinbus.cli.pair import exit_with_error
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

app = typer.Typer(no_args_is_help=True)

SERVER_START_TIMEOUT_S: Final = 10.0
"""How long a server may have the data directory and not listen: it is about to start, or to stop."""
_POLL_INTERVAL_S: Final = 0.1

DataOption = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        readable=False,  # we say who may read it
        help="The namespace's data directory, as in twinbus serve.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the key.")]
EntityOption = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="A queue or topic: its own keys, on a running server.", show_default="the whole namespace"
    ),
]
ShowOption = Annotated[bool, typer.Option("--show", help="Print secrets and, if the server runs, connection strings.")]


@app.callback()
def key() -> None:
    """List, add, rotate and revoke the keys of a namespace.

    A running server uses the new keys when the command ends; connections with other keys stay up.
    """


@app.command("list")
def list_keys(
    *,
    data: DataOption,
    entity: EntityOption = "",
    show: ShowOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the keys of a namespace."""
    answer = _execute(data, KeyCommand("list", show=show, entity=entity))
    if as_json:
        typer.echo(msgspec.json.encode([_to_json_object(one) for one in answer.keys]))
        return
    rows = [("NAME", "RIGHTS", "SECRETS", "CHANGED"), *map(_table_row, answer.keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        typer.echo("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    for one in answer.keys if show else ():
        typer.echo("")
        typer.echo(f"{one.name}:")
        _print_secrets(one)


@app.command()
def add(
    name: NameArgument,
    *,
    rights: Annotated[
        str, typer.Option(metavar="RIGHTS", help="Send, Listen, or both as Send,Listen; Manage includes both.")
    ],
    data: DataOption,
    entity: EntityOption = "",
    show: ShowOption = False,
) -> None:
    """Add a key with a new secret."""
    given = tuple(one.strip().capitalize() for one in rights.split(",") if one.strip())
    answer = _execute(data, KeyCommand("add", name, given, show=show, entity=entity))
    one = _find_key(answer, name)
    typer.echo(f"Added key {name} with {', '.join(one.rights)}. {_effect_message(answer)}")
    _print_secrets_or_hint(one, data, entity, show=show)


@app.command()
def rotate(
    name: NameArgument,
    *,
    data: DataOption,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Make a new secondary secret; the primary stays as it is.")
    ] = False,
    entity: EntityOption = "",
    show: ShowOption = False,
) -> None:
    """Make a new primary secret; the former one becomes the secondary.

    Clients that have the former primary go on. The former secondary is refused from now on.
    """
    answer = _execute(data, KeyCommand("rotate", name, secondary=secondary, show=show, entity=entity))
    if secondary:
        done = "The secondary secret is new, and the former one is not valid any more."
    else:
        done = "The primary secret is new, and the former one is valid as the secondary."
    typer.echo(f"Rotated key {name}. {done} {_effect_message(answer)}")
    _print_secrets_or_hint(_find_key(answer, name), data, entity, show=show)


@app.command()
def revoke(
    name: NameArgument,
    *,
    data: DataOption,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Revoke the secondary secret only, as after a rotation.")
    ] = False,
    entity: EntityOption = "",
    force: Annotated[bool, typer.Option("--force", help="Revoke the last key with Manage, too.")] = False,
) -> None:
    """Revoke a key, or its secondary secret only.

    Secrets, and tokens made with them, are refused from now on. Links that were opened with them end.
    """
    answer = _execute(data, KeyCommand("revoke", name, secondary=secondary, force=force, entity=entity))
    what = f"the secondary secret of key {name}" if secondary else f"key {name}"
    typer.echo(f"Revoked {what}. {_effect_message(answer)}")


# --- doing it ---------------------------------------------------------------------------------------------------------


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
                    raise KeyChangeRefused(f"{text}: it is starting, or its supervisor has ended; restart it") from None
                time.sleep(_POLL_INTERVAL_S)
    except PermissionError:
        exit_with_error(f"key {order.do}", _not_owner_error(data))
    except (KeyChangeRefused, StartError, OSError) as error:
        exit_with_error(f"key {order.do}", error)


def _check_directory(data: Path) -> None:
    if not data.is_dir():
        raise KeyChangeRefused(f"there is no data directory {data}: --data names the one that twinbus serve has")
    if not (data / "format").exists() or not (data / KEYS_FILE).exists():
        raise KeyChangeRefused(f"{data} is no data directory with keys: --data names the one that twinbus serve has")


def _change_stopped(data: Path, order: KeyCommand) -> KeyCommandReply:
    if data.stat().st_uid != os.geteuid():
        raise PermissionError
    if order.entity:
        raise KeyChangeRefused(
            f"the server of {data} is not running: start it to see or change keys of queues and topics"
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


# --- what is printed --------------------------------------------------------------------------------------------------


def _find_key(answer: KeyCommandReply, name: str) -> KeyView:
    return next(one for one in answer.keys if one.name == name)


def _effect_message(answer: KeyCommandReply) -> str:
    if answer.pid is None:
        return "The server is not running: effective at its next start."
    return f"Effective now (process {answer.pid})."


def _table_row(key_info: KeyView) -> tuple[str, str, str, str]:
    if key_info.source != DATA_DIRECTORY:
        return key_info.name, ", ".join(key_info.rights), f"in the {key_info.source}", ""
    secrets = "primary, secondary" if key_info.has_secondary else "primary"
    return key_info.name, ", ".join(key_info.rights), secrets, key_info.changed or "unknown"


def _to_json_object(key_info: KeyView) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(key_info)
    return {name: value for name, value in found.items() if value is not None}


def _print_secrets(key_info: KeyView) -> None:
    if key_info.source != DATA_DIRECTORY:
        typer.echo(f"  its secrets are in the {key_info.source}")
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
        typer.echo(f"See its secrets with: twinbus key list --data {data}{entity and f' --entity {entity}'} --show")
