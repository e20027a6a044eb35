"""The text that `twinbus serve` prints when a server is ready: how to connect, trust its CA, and try it.

    print(first_steps(ready, Path("twinbus-data/contoso.json"), with_keys=sys.stdout.isatty()))

Owns this text, and the choice where a key may be printed: on a terminal, or if the user requests it. Output that is
not a terminal often ends in a log file, which must not contain a key.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from twinbus.cli.connection import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinbus.server.runtime.ready_file import ReadyFile

_ENDPOINT: Final = re.compile(r"Endpoint=sb://([^;/]+)")
_COMMANDS: Final = (
    "twinbus entity create queue orders",
    'twinbus message send orders "hello"',
    "twinbus message receive orders",
    "twinbus top",
)
_NAME: Final = "twinbus"
_NO_KEY: Final = "none: no key has Manage, or no port is open for it"


def print_connection_strings(ready: ReadyFile) -> None:
    """Print the connection strings with the key, as `--show-connection-string` requests."""
    typer.echo(f"Namespace {ready.namespace} is ready. Connection string for messaging clients of the Azure SDKs:")
    typer.echo(f"    {ready.connection_string or 'none: no AMQP port is open'}")
    typer.echo(f"For their administration clients, which must trust {ready.ca_file or 'your CA'}:")
    typer.echo(f"    {ready.admin_connection_string or 'none: the https port is not open'}")


def print_first_steps(ready: ReadyFile, ready_file: Path | None) -> None:
    """Print how to use a namespace; with the key only if stdout is a terminal."""
    typer.echo("\n".join(first_steps(ready, ready_file, with_keys=sys.stdout.isatty())))


def print_pair_steps(ready_files: Sequence[ReadyFile], files: Sequence[Path], *, show_keys: bool) -> None:
    """Print how to use a pair; with the keys only if `show_keys` requests them or stdout is a terminal."""
    typer.echo("\n".join(pair_steps(ready_files, files, with_keys=show_keys or sys.stdout.isatty())))


def pair_steps(ready_files: Sequence[ReadyFile], files: Sequence[Path], *, with_keys: bool) -> list[str]:
    """Return the lines that describe how to connect to both namespaces of a pair, and how to see an outage."""
    lines = []
    for ready, file in zip(ready_files, files, strict=True):
        lines += [f"Namespace {ready.namespace} is ready on {address(ready)} (process {ready.pid}).", ""]
        lines += connection_lines(ready, file, with_keys=with_keys)
    by_authority = {ready.ca_file: ready for ready in reversed(ready_files)}  # one CA, unless a directory has its own
    for ready in reversed(by_authority.values()):
        lines += trust_lines(ready)
    return [
        *lines,
        *try_lines(files[0]),
        "To see an outage, kill one server; senders of the pair keep working:",
        "",
        *_indented([f"kill -KILL {ready_files[0].pid}"]),
        "",
        "Ctrl-C stops both servers.",
    ]


def first_steps(ready: ReadyFile, ready_file: Path | None, *, with_keys: bool) -> list[str]:
    """Return the lines that describe how to connect to a namespace, trust its CA, and try it."""
    lines = [f"Namespace {ready.namespace} is ready on {address(ready)}.", ""]
    lines += connection_lines(ready, ready_file, with_keys=with_keys)
    lines += trust_lines(ready)
    return [*lines, *try_lines(ready_file), "Ctrl-C stops the server."]


def try_lines(ready_file: Path | None) -> list[str]:
    """Return the lines with commands to try, which find the namespace by its ready file."""
    if ready_file is None:
        title, option = "Try it in another terminal, after export TWINBUS_CONNECTION_STRING='...':", ""
    else:
        title = "Try it in another terminal, in this folder:"
        option = "" if ready_file == Role.PRIMARY.ready_file else f" --ready-file {shlex.quote(str(ready_file))}"
    alias = [f"alias twinbus={shlex.quote(program())}"] if program() != _NAME else []
    return [title, "", *_indented([*alias, *(f"{command}{option}" for command in _COMMANDS)]), ""]


def program() -> str:
    """Return how this program was started, for commands that a user can copy."""
    if Path(sys.argv[0]).name == _NAME:
        found = shutil.which(_NAME)
        is_found = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
        return _NAME if is_found else shlex.quote(sys.argv[0])
    interpreter = min(os.path.relpath(sys.executable), sys.executable, key=len)
    path = os.environ.get("PYTHONPATH")
    return f"{f'env PYTHONPATH={shlex.quote(path)} ' if path else ''}{shlex.quote(interpreter)} -m {_NAME}"


def connection_lines(ready: ReadyFile, ready_file: Path | None, *, with_keys: bool) -> list[str]:
    """Return the lines with the connection strings, or with the place where they are."""
    if not with_keys:
        where = ready_file or "the output of --show-connection-string, and in the file of --ready-file"
        return [f"Its connection string, which contains a key, is in {where}.", ""]
    if is_one_port(ready):
        texts = [("Connection string, for messages and for administration:", ready.connection_string)]
    else:
        texts = [
            ("Connection string for messages:", ready.connection_string),
            ("Connection string for administration:", ready.admin_connection_string),
        ]
    return [line for title, text in texts for line in (title, "", *_indented([text or _NO_KEY]), "")]


def trust_lines(ready: ReadyFile) -> list[str]:
    """Return the lines that show how clients trust the CA; none if the operator's certificate is used."""
    if ready.ca_file is None:
        return []
    file = shlex.quote(ready.ca_file)
    port = ready.https_port or ready.amqp_port
    url = f"https://{address(ready).rpartition(':')[0]}:{port}/health"
    return [
        "Clients that use TLS, such as administration clients, must trust its CA:",
        "",
        *_indented(
            [
                f'Python  connection_verify="{ready.ca_file}"',
                f"Node    export NODE_EXTRA_CA_CERTS={file}",
                f"Go      export SSL_CERT_FILE={file}",
                f".NET    export SSL_CERT_FILE={file}",
                "Java    keytool -importcert -noprompt -cacerts -storepass changeit \\",
                f"          -alias twinbus -file {file}",
                f"curl    curl --cacert {file} {url}",
            ]
        ),
        "",
    ]


def is_one_port(ready: ReadyFile) -> bool:
    """Return whether the connection string names the port that serves messages and administration."""
    return ready.amqp_port is not None and (ready.connection_string or "").endswith(";UseDevelopmentEmulator=true")


def address(ready: ReadyFile) -> str:
    """Return host and port of a namespace, as clients name it."""
    match = _ENDPOINT.match(ready.connection_string or ready.admin_connection_string or "")
    return match[1] if match else f"localhost:{ready.amqp_port or ready.amqps_port or ready.https_port}"


def _indented(lines: Iterable[str]) -> Sequence[str]:
    return [f"    {line}" for line in lines]
