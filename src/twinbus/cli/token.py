"""The command `twinbus token`: make a shared access signature for curl, Prometheus and other HTTP clients.

Owns the options and the output. The format of tokens is in `model.signature`.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.output import CommandFailed, JsonOption, Misuse, examples, print_json, run_command
from twinbus.cli.units import parse_duration

MAX_LIFETIME_S: Final = 366 * 86_400
"""Maximum lifetime. A token can be revoked only together with its key, so no token may be valid for ever."""
EXAMPLES: Final = examples(
    'curl -H "Authorization: $(twinbus token)" http://localhost:5672/orders',
    "twinbus token orders --lifetime 30d",
)


def token(
    entity: Annotated[
        str | None,
        typer.Argument(metavar="ENTITY", help="Queue, topic or subscription (default: the whole namespace)."),
    ] = None,
    *,
    lifetime_ms: Annotated[
        int,
        typer.Option(
            "--lifetime", metavar="DURATION", parser=parse_duration, help="How long the token is valid, such as 30d."
        ),
    ] = "1h",  # type: ignore[assignment]  # the parser converts the default, too
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a token with the rights of the connection's key, for the namespace or for an entity.

    The printed token is a value for the HTTP header Authorization.
    """

    def run() -> None:
        from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `--help` starts faster
        from twinbus.model.signature import make_token  # noqa: PLC0415

        if not 0 < lifetime_ms <= MAX_LIFETIME_S * 1000:
            raise Misuse("--lifetime is longer than 366d: make a new token from time to time")
        target = find_target(connection_string, ready_file, profile, ca_file)
        parsed = ConnectionString.parse(target.connection_string)
        if parsed.key_name is None or parsed.key is None:
            raise CommandFailed(f"{target.source} has a signature, not a key: only a key can sign tokens")
        path = _path(entity, parsed.entity_path)
        uri, expires_s = f"sb://{parsed.host}/{path}", int(time.time()) + lifetime_ms // 1000
        text = make_token(uri, parsed.key_name, parsed.key, expires_s)
        if as_json:
            expires = dt.datetime.fromtimestamp(expires_s, dt.UTC)
            print_json({"token": text, "uri": uri, "key": parsed.key_name, "expires": expires})
        else:
            typer.echo(text)

    run_command("token", run)


def _path(entity: str | None, limit: str | None) -> str:
    """Return the path to sign. Raise CommandFailed if the connection string is limited to another entity."""
    path = (entity or limit or "").strip("/")
    if limit and not f"{path}/".lower().startswith(f"{limit.strip('/')}/".lower()):
        raise CommandFailed(f"the connection string is for {limit!r:.80}: its key cannot sign a token for {path!r:.80}")
    return path
