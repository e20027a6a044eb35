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

from twinbus.cli.pair import stop
from twinbus.server import key_file, key_socket
from twinbus.server.data_directory import KEY_SOCKET, KEYS, InUse, lock, unlock
from twinbus.server.key_file import KeyRefused, Order
from twinbus.server.key_socket import DATA_DIRECTORY, Answer, Shown
from twinbus.server.settings import StartError

app = typer.Typer(no_args_is_help=True)

STARTING_S: Final = 10.0
"""How long a server may have the data directory and not listen: it is about to start, or to stop."""
_LOOK_EVERY_S: Final = 0.1

Data = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        readable=False,  # we say who may read it
        help="The namespace's data directory, as in twinbus serve.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the key.")]
Entity = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="A queue or topic: its own keys, on a running server.", show_default="the whole namespace"
    ),
]
Show = Annotated[bool, typer.Option("--show", help="Print secrets and, if the server runs, connection strings.")]


@app.callback()
def key() -> None:
    """List, add, rotate and revoke the keys of a namespace.

    A running server uses the new keys when the command ends; connections with other keys stay up.
    """


@app.command("list")
def list_keys(
    *,
    data: Data,
    entity: Entity = "",
    show: Show = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the keys of a namespace."""
    answer = _order(data, Order("list", show=show, entity=entity))
    if as_json:
        typer.echo(msgspec.json.encode([_told(one) for one in answer.keys]))
        return
    rows = [("NAME", "RIGHTS", "SECRETS", "CHANGED"), *map(_row, answer.keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        typer.echo("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    for one in answer.keys if show else ():
        typer.echo("")
        typer.echo(f"{one.name}:")
        _show(one)


@app.command()
def add(
    name: Name,
    *,
    rights: Annotated[
        str, typer.Option(metavar="RIGHTS", help="Send, Listen, or both as Send,Listen; Manage includes both.")
    ],
    data: Data,
    entity: Entity = "",
    show: Show = False,
) -> None:
    """Add a key with a new secret."""
    given = tuple(one.strip().capitalize() for one in rights.split(",") if one.strip())
    answer = _order(data, Order("add", name, given, show=show, entity=entity))
    one = _find(answer, name)
    typer.echo(f"Added key {name} with {', '.join(one.rights)}. {_effect(answer)}")
    _show_or_say_how(one, data, entity, show=show)


@app.command()
def rotate(
    name: Name,
    *,
    data: Data,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Make a new secondary secret; the primary stays as it is.")
    ] = False,
    entity: Entity = "",
    show: Show = False,
) -> None:
    """Make a new primary secret; the former one becomes the secondary.

    Clients that have the former primary go on. The former secondary is refused from now on.
    """
    answer = _order(data, Order("rotate", name, secondary=secondary, show=show, entity=entity))
    if secondary:
        done = "The secondary secret is new, and the former one is not valid any more."
    else:
        done = "The primary secret is new, and the former one is valid as the secondary."
    typer.echo(f"Rotated key {name}. {done} {_effect(answer)}")
    _show_or_say_how(_find(answer, name), data, entity, show=show)


@app.command()
def revoke(
    name: Name,
    *,
    data: Data,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Revoke the secondary secret only, as after a rotation.")
    ] = False,
    entity: Entity = "",
    force: Annotated[bool, typer.Option("--force", help="Revoke the last key with Manage, too.")] = False,
) -> None:
    """Revoke a key, or its secondary secret only.

    Secrets, and tokens made with them, are refused from now on. Links that were opened with them end.
    """
    answer = _order(data, Order("revoke", name, secondary=secondary, force=force, entity=entity))
    what = f"the secondary secret of key {name}" if secondary else f"key {name}"
    typer.echo(f"Revoked {what}. {_effect(answer)}")


# --- doing it ---------------------------------------------------------------------------------------------------------


def _order(data: Path, order: Order) -> Answer:
    try:
        _check_directory(data)
        deadline_s = time.monotonic() + STARTING_S
        while True:
            try:
                return key_socket.ask(data / KEY_SOCKET, order) or _change_stopped(data, order)
            except InUse as error:
                if time.monotonic() > deadline_s:
                    text = f"{data} is in use by process {error.owner}, which does not listen at {data / KEY_SOCKET}"
                    raise KeyRefused(f"{text}: it is starting, or its supervisor has ended; restart it") from None
                time.sleep(_LOOK_EVERY_S)
    except PermissionError:
        stop(f"key {order.do}", _not_ours(data))
    except (KeyRefused, StartError, OSError) as error:
        stop(f"key {order.do}", error)


def _check_directory(data: Path) -> None:
    if not data.is_dir():
        raise KeyRefused(f"there is no data directory {data}: --data names the one that twinbus serve has")
    if not (data / "format").exists() or not (data / KEYS).exists():
        raise KeyRefused(f"{data} is no data directory with keys: --data names the one that twinbus serve has")


def _change_stopped(data: Path, order: Order) -> Answer:
    if data.stat().st_uid != os.geteuid():
        raise PermissionError
    if order.entity:
        raise KeyRefused(f"the server of {data} is not running: start it to see or change keys of queues and topics")
    descriptor = lock(data)
    try:
        rules = key_file.read(data / KEYS)
        after = key_file.change(rules, order, dt.datetime.now(dt.UTC))
        if after != rules:
            key_file.write(data / KEYS, after)
    finally:
        unlock(descriptor)
    return Answer(tuple(_shown(rule, order) for rule in after))


def _shown(rule: key_file.KeyRule, order: Order) -> Shown:
    return key_socket.shown(rule, show=order.show)


def _not_ours(data: Path) -> KeyRefused:
    try:
        owner = f"user {data.stat().st_uid}, who owns it"
    except OSError:
        owner = "its owner"
    return KeyRefused(f"user {os.geteuid()} may not use {data}: run this command as {owner}")


# --- what is printed --------------------------------------------------------------------------------------------------


def _find(answer: Answer, name: str) -> Shown:
    return next(one for one in answer.keys if one.name == name)


def _effect(answer: Answer) -> str:
    if answer.pid is None:
        return "The server is not running: effective at its next start."
    return f"Effective now (process {answer.pid})."


def _row(one: Shown) -> tuple[str, str, str, str]:
    if one.source != DATA_DIRECTORY:
        return one.name, ", ".join(one.rights), f"in the {one.source}", ""
    secrets = "primary, secondary" if one.has_secondary else "primary"
    return one.name, ", ".join(one.rights), secrets, one.changed or "unknown"


def _told(one: Shown) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(one)
    return {name: value for name, value in found.items() if value is not None}


def _show(one: Shown) -> None:
    if one.source != DATA_DIRECTORY:
        typer.echo(f"  its secrets are in the {one.source}")
        return
    for title, text in (
        ("primary", one.primary),
        ("secondary", one.secondary),
        ("connection string", one.connection_string),
    ):
        if text is not None:
            typer.echo(f"  {title}: {text}")


def _show_or_say_how(one: Shown, data: Path, entity: str, *, show: bool) -> None:
    if show:
        _show(one)
    else:
        typer.echo(f"See its secrets with: twinbus key list --data {data}{entity and f' --entity {entity}'} --show")
