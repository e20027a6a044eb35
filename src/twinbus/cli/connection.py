"""Where a command finds its namespace: options, environment, profile, or the ready file of a local server.

Owns the connection options of all commands, and the order in which places are tried. No command requires a secret as an
argument. Profiles are in `profiles`. A `repr` never shows a key.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self, TypeAlias

import typer

from twinbus.cli.output import CommandFailed, Misuse
from twinbus.cli.profiles import read_profiles

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from twinbus.cli.profiles import Profile

DATA_DIRECTORY: Final = Path("twinbus-data")
"""Folder in which `twinbus serve` without --data keeps its data and ready files."""
STDIN: Final = "-"
MAX_LENGTH: Final = 65_536
"""Maximum length of a connection string on stdin, and of a ready file."""


class Role(Enum):
    """Role of a namespace in a command: prefix of the options and variables, and ready file of a local server."""

    PRIMARY = ("", "TWINBUS_", DATA_DIRECTORY / "contoso.json")
    SECONDARY = ("secondary-", "TWINBUS_SECONDARY_", DATA_DIRECTORY / "contoso-backup.json")
    SOURCE = ("source-", "TWINBUS_SOURCE_", None)

    def __init__(self, option_prefix: str, variable_prefix: str, ready_file: Path | None) -> None:
        self.option_prefix = option_prefix
        self.variable_prefix = variable_prefix
        self.ready_file = ready_file

    def option(self, name: str) -> str:
        """Return the full name of an option."""
        return f"--{self.option_prefix}{name}"

    def variable(self, name: str) -> str:
        """Return the full name of an environment variable."""
        return f"{self.variable_prefix}{name}"


def _option_for_string(role: Role) -> object:
    return typer.Option(
        role.option("connection-string"),
        metavar="TEXT",
        help=f"Connection string, or - to read it from stdin. Better: {role.variable('CONNECTION_STRING')}.",
        show_default=False,
    )


def _option_for_ready_file(role: Role) -> object:
    return typer.Option(
        role.option("ready-file"), metavar="FILE", help="Ready file of a running server.", show_default=False
    )


def complete_profile(incomplete: str) -> list[str]:
    """Return the profiles whose name starts with `incomplete`, for the completion of shells."""
    try:
        return [name for name in read_profiles().by_name if name.startswith(incomplete)]
    except CommandFailed:  # an error would disturb the prompt of the shell
        return []


def _option_for_profile(role: Role) -> object:
    return typer.Option(
        role.option("profile"),
        metavar="NAME",
        help="Profile added with twinbus profile.",
        show_default=False,
        autocompletion=complete_profile,
    )


def _hidden_option_for_admin(role: Role) -> object:
    """Return the hidden option for a connection string for administration, which ready files and profiles contain."""
    return typer.Option(role.option("admin-connection-string"), hidden=True)


ConnectionStringOption = Annotated[str | None, _option_for_string(Role.PRIMARY)]
ReadyFileOption = Annotated[Path | None, _option_for_ready_file(Role.PRIMARY)]
ProfileOption = Annotated[str | None, _option_for_profile(Role.PRIMARY)]
AdminConnectionStringOption = Annotated[str | None, _hidden_option_for_admin(Role.PRIMARY)]
CaFileOption = Annotated[
    list[Path] | None,
    typer.Option("--ca-file", metavar="FILE", help="CA certificate to trust; repeatable.", show_default=False),
]
SecondaryConnectionStringOption = Annotated[str | None, _option_for_string(Role.SECONDARY)]
SecondaryAdminConnectionStringOption = Annotated[str | None, _hidden_option_for_admin(Role.SECONDARY)]
SecondaryReadyFileOption = Annotated[Path | None, _option_for_ready_file(Role.SECONDARY)]
SecondaryProfileOption = Annotated[str | None, _option_for_profile(Role.SECONDARY)]
SourceConnectionStringOption = Annotated[str | None, _option_for_string(Role.SOURCE)]
SourceReadyFileOption = Annotated[Path | None, _option_for_ready_file(Role.SOURCE)]
SourceProfileOption = Annotated[str | None, _option_for_profile(Role.SOURCE)]


@dataclass(frozen=True)
class Target:
    """A namespace to which a command connects."""

    connection_string: str = field(repr=False)
    admin_connection_string: str = field(repr=False)
    ca_files: tuple[Path, ...]
    source: str
    """Where the connection string came from, for messages."""
    namespace: str | None = None
    """Name of the namespace, if a ready file or a profile tells it: a host such as localhost does not."""

    def find_name(self) -> str | None:
        """Return the name of the namespace: the first label of its host, or else the name that the source tells."""
        from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `serve` starts faster

        return ConnectionString.parse(self.connection_string).namespace or self.namespace

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a TLS context that also trusts the CA files; None if there are none. Raise OSError."""
        from twinbus.cli.admin_client import tls_context  # noqa: PLC0415  # imports this module's neighbours

        return tls_context(self.ca_files) if self.ca_files else None

    def with_ca_files(self, files: Sequence[Path]) -> Self:
        """Return the same target that also trusts `files`."""
        return replace(self, ca_files=(*self.ca_files, *files))


def find_target(
    connection_string: str | None,
    ready_file: Path | None,
    profile: str | None,
    ca_file: list[Path] | None,
    *,
    role: Role = Role.PRIMARY,
    admin: str | None = None,
) -> Target:
    """Return the namespace that the options, the environment, the default profile or a local server names.

    `admin` is a connection string for administration only. Raise CommandFailed if none of these places names a
    namespace, or if the first connection string found is invalid.
    """
    if connection_string is None and ready_file is None and profile is None:
        connection_string = admin
    target = _from_options(connection_string, ready_file, profile, role) or _from_surroundings(role)
    if target is None:
        raise Misuse(_not_found_text(role))
    if admin is not None:
        target = replace(target, admin_connection_string=admin)
    check_target(target)
    return target.with_ca_files(ca_file or ())


def find_optional_target(
    connection_string: str | None,
    ready_file: Path | None,
    profile: str | None,
    ca_file: list[Path] | None,
    *,
    role: Role,
    admin: str | None = None,
) -> Target | None:
    """Return the namespace that the options or the environment name, for commands that also work without it."""
    options = (connection_string, ready_file, profile, admin)
    if all(option is None for option in options) and not os.environ.get(role.variable("CONNECTION_STRING")):
        return None
    return find_target(connection_string, ready_file, profile, ca_file, role=role, admin=admin)


Places: TypeAlias = "tuple[str | None, Path | None, str | None]"
"""Values of the options for a connection string, a ready file and a profile."""


def find_pair(
    primary: Places, secondary: Places, ca_file: list[Path] | None, secondary_admin: str | None = None
) -> tuple[Target, Target]:
    """Return both namespaces of a pair; both trust all CA files. Raise CommandFailed as `find_target` does."""
    first = find_target(*primary, ca_file)
    second = find_target(*secondary, None, role=Role.SECONDARY, admin=secondary_admin)
    return first.with_ca_files(second.ca_files), second.with_ca_files(first.ca_files)


def target_from_ready_file(file: Path) -> Target:
    """Return the namespace of a ready file. Raise CommandFailed if it cannot be read, or is not a ready file."""
    import msgspec  # noqa: PLC0415  # `--help` starts faster

    try:
        with file.open("rb") as stream:
            content = msgspec.json.decode(stream.read(MAX_LENGTH), type=dict[str, object])
    except FileNotFoundError:
        raise CommandFailed(f"there is no ready file {file}: is the server running?") from None
    except OSError as error:
        raise CommandFailed(f"the ready file {file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandFailed(f"{file} is not a ready file: give the --ready-file of twinbus serve") from None
    messaging, admin, ca_file = (
        content.get(name) for name in ("connection_string", "admin_connection_string", "ca_file")
    )
    string = messaging or admin
    if not isinstance(string, str):
        raise CommandFailed(f"the ready file {file} has no connection string: no key of the server has Manage")
    namespace = content.get("namespace")
    return Target(
        string,
        admin if isinstance(admin, str) else string,
        (Path(ca_file),) if isinstance(ca_file, str) else (),
        source=f"ready file {file}",
        namespace=namespace if isinstance(namespace, str) else None,
    )


def read_connection_string_from_stdin() -> str:
    """Return the first line of stdin. Raise CommandFailed if it is empty."""
    text = sys.stdin.readline(MAX_LENGTH).strip()
    if not text:
        raise Misuse("stdin has no connection string: write it in one line")
    return text


# --- places, in the order of search -----------------------------------------------------------------------------------


def _from_options(text: str | None, ready_file: Path | None, profile: str | None, role: Role) -> Target | None:
    given = [
        role.option(name)
        for name, value in (("connection-string", text), ("ready-file", ready_file), ("profile", profile))
        if value is not None
    ]
    if len(given) > 1:
        raise Misuse(f"give only one of {' and '.join(given)}")
    if text is not None:
        source = "stdin" if text == STDIN else role.option("connection-string")
        string = read_connection_string_from_stdin() if text == STDIN else text
        return Target(string, string, (), source=source)
    if ready_file is not None:
        return target_from_ready_file(ready_file)
    return None if profile is None else _from_profile(profile)


def _from_surroundings(role: Role) -> Target | None:
    """Return the namespace from the environment, the default profile, or the ready file of a server in this folder."""
    string = os.environ.get(role.variable("CONNECTION_STRING"))
    if string:
        ca_file = os.environ.get(role.variable("CA_FILE"))
        admin = os.environ.get(role.variable("ADMIN_CONNECTION_STRING")) or string
        return Target(string, admin, (Path(ca_file),) if ca_file else (), role.variable("CONNECTION_STRING"))
    if role is Role.PRIMARY:
        name = read_profiles().default
        if name is not None:
            return _from_profile(name)
    if role.ready_file is not None and role.ready_file.exists():
        return target_from_ready_file(role.ready_file)
    return None


def _from_profile(name: str) -> Target:
    profiles = read_profiles()
    profile = profiles.by_name.get(name)
    if profile is None:
        known = ", ".join(profiles.by_name) or "none"
        raise CommandFailed(f"there is no profile {name!r:.80} (profiles: {known}): add it with twinbus profile add")
    return target_from_profile(name, profile)


def target_from_profile(name: str, profile: Profile) -> Target:
    """Return the namespace of a profile."""
    return Target(
        profile.connection_string,
        profile.admin_connection_string or profile.connection_string,
        tuple(map(Path, profile.ca_files)),
        source=f"profile {name}",
        namespace=profile.namespace,
    )


def check_target(target: Target) -> None:
    """Raise Misuse if a connection string is invalid; the text never contains the key."""
    from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `serve` starts faster

    for text in (target.connection_string, target.admin_connection_string):
        try:
            ConnectionString.parse(text)
        except ValueError as error:
            raise Misuse(f"{target.source}: {error}") from None


def _not_found_text(role: Role) -> str:
    found = min(DATA_DIRECTORY.glob("*.json"), default="FILE") if role is Role.PRIMARY else "FILE"
    places = [f"{role.option('ready-file')} {found}", f"{role.option('profile')} NAME"]
    places.append(f"set {role.variable('CONNECTION_STRING')}")
    if role.ready_file is not None:
        places.append("or start twinbus serve in this folder")
    which = {Role.PRIMARY: "namespace", Role.SECONDARY: "secondary namespace", Role.SOURCE: "source namespace"}[role]
    return f"no {which} is given: use {', '.join(places)}"
