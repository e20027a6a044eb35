"""The command `twinbus serve`: serve a namespace, or a pair of namespaces, until a signal stops it.

Owns the options, their help, the default name and folder, and the exit codes: 0 after a clean stop, 1 if the server
cannot start or has failed, 2 for an invalid option or configuration file. Validation and other defaults are in
`server.config.settings`, the parsing of files in `server.config`. Options override the file.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from twinbus.cli.connection import DATA_DIRECTORY
from twinbus.server.config.settings import (
    DEFAULT_STORES,
    PROTOCOLS,
    ConfigurationError,
    InvalidSetting,
    ServeSettings,
    StartError,
    parse_port,
    parse_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.runtime.ready_file import ReadyFile

_DEFAULTS: Final = ServeSettings(name="defaults", data=Path())
DEFAULT_NAME: Final = "contoso"
_EXIT_FAILED: Final = 1
_EXIT_MISUSE: Final = 2
_PARAMETER_NAMES: Final = {
    "store_dirs": "store_dir",
    "allowed_hosts": "allowed_host",
    "min_free_bytes": "min_free",
    "store_timeout_s": "store_timeout",
    "worker_timeout_s": "worker_timeout",
    "sync": "unsafe_no_sync",
    "metering": "no_metering",
}
"""Parameters of `serve`, for settings whose parameter has another name."""

logger = logging.getLogger(__name__)


def serve(  # noqa: PLR0913  # one per option
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the namespace: letters, digits and hyphens.",
            show_default="contoso, or the name in --config",
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Data directory, created at the first start. With --pair, the folder for NAME and NAME-backup.",
            show_default="twinbus-data/NAME, or the directory in --config",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration file with settings and entities: .toml, or Config.json of Microsoft's emulator.",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        bool,
        typer.Option("--pair", help="Serve the pair NAME and NAME-backup, each in a process of its own."),
    ] = False,
    secondary_ports: Annotated[  # noqa: ARG001  # `_serve_pair` reads it from the context
        str,
        typer.Option(
            metavar="PORTS",
            help="With --pair: AMQP, AMQPS, HTTP and HTTPS port of NAME-backup; 0 picks free ports.",
        ),
    ] = "5673,5674,5301,5444",
    emulator_key: Annotated[
        bool,
        typer.Option("--emulator-key", help="Also accept the key of Microsoft's emulator; only on loopback addresses."),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --emulator-key: host name that clients and web pages may use; repeatable.",
            show_default="the server's own names",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = _DEFAULTS.host,
    amqp_port: Annotated[
        str,
        typer.Option(
            metavar="PORT",
            help="Port for AMQP and HTTP, with and without TLS. For all ports: 0 picks a free port, none disables it.",
        ),
    ] = str(_DEFAULTS.amqp_port),
    amqps_port: Annotated[str, typer.Option(metavar="PORT", help="Port for AMQP with TLS.")] = str(
        _DEFAULTS.amqps_port
    ),
    http_port: Annotated[str, typer.Option(metavar="PORT", help="Port for HTTP without TLS.")] = str(
        _DEFAULTS.http_port
    ),
    https_port: Annotated[
        str,
        typer.Option(metavar="PORT", help="Port for HTTP with TLS, used by the administration clients of the SDKs."),
    ] = str(_DEFAULTS.https_port),
    plaintext: Annotated[
        list[str] | None,
        typer.Option(
            metavar="amqp|http",
            help="Serve this protocol without TLS although --host can be reached from other machines; repeatable.",
            show_default="on loopback addresses only",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="NUMBER", help="Number of worker processes; at most the number of stores.")
    ] = _DEFAULTS.workers,
    worker_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Kill a worker process that does not respond for this long.")
    ] = _DEFAULTS.worker_timeout_s,
    stores: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="Number of databases for the entities; more can be added later, but none removed.",
            show_default=f"as many as --data has; {DEFAULT_STORES} for a new one",
        ),
    ] = None,
    store_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Where to create new stores; several are used in turn. Existing stores are not moved.",
            show_default="in --data",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write when the server is ready, with ports and connection strings.",
            show_default="twinbus-data/NAME.json if --data is not given",
        ),
    ] = None,
    show_connection_string: Annotated[
        bool,
        typer.Option(
            "--show-connection-string", help="Print the connection strings, with the key, when the server is ready."
        ),
    ] = False,
    min_free: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Refuse sends to a store with less free disk space than this, for example 500MB; 0: never.",
        ),
    ] = "1GiB",
    store_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Treat a store that does not respond for this long as unavailable.")
    ] = _DEFAULTS.store_timeout_s,
    max_connections: Annotated[
        int, typer.Option(metavar="NUMBER", help="Maximum number of connections per process, over all ports.")
    ] = _DEFAULTS.max_connections,
    max_unauthenticated: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Maximum number of unauthenticated connections per address; at most half of --max-connections.",
        ),
    ] = _DEFAULTS.max_unauthenticated,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS certificate with its chain.", show_default="a development certificate"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of --tls-cert, without a password.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = _DEFAULTS.log_level,
    log_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="Log format: text or json, one line per record.")
    ] = _DEFAULTS.log_format,
    measure_pauses: Annotated[
        bool,
        typer.Option("--measure-pauses", help="Measure how long the event loop is blocked; /health shows the result."),
    ] = False,
    no_metering: Annotated[
        bool, typer.Option("--no-metering", help="Do not record the usage of clients.", show_default=False)
    ] = False,
    usage_days: Annotated[
        int, typer.Option(metavar="NUMBER", help="Days to keep usage records; 0: forever.")
    ] = _DEFAULTS.usage_days,
    unsafe_no_sync: Annotated[
        bool,
        typer.Option("--unsafe-no-sync", hidden=True, help="For tests and benchmarks: accepted messages can be lost."),
    ] = False,
) -> None:
    """Serve a namespace until SIGTERM or Ctrl-C. SIGHUP reloads certificates, keys and the log level.

    Without arguments, the command serves the namespace contoso from the folder twinbus-data, and prints first steps.
    """
    try:
        options = {
            "name": name,
            "data": data,
            "host": host,
            "amqp_port": parse_port("--amqp-port", amqp_port),
            "amqps_port": parse_port("--amqps-port", amqps_port),
            "http_port": parse_port("--http-port", http_port),
            "https_port": parse_port("--https-port", https_port),
            "plaintext": tuple(plaintext or ()),
            "workers": workers,
            "worker_timeout_s": worker_timeout,
            "stores": stores,
            "store_dirs": tuple(store_dir or ()),
            "ready_file": ready_file,
            "min_free_bytes": parse_size("--min-free", min_free),
            "store_timeout_s": store_timeout,
            "max_connections": max_connections,
            "max_unauthenticated": max_unauthenticated,
            "log_level": log_level,
            "log_format": log_format,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "measure_pauses": measure_pauses,
            "metering": not no_metering,
            "usage_days": usage_days,
            "emulator_key": emulator_key,
            "allowed_hosts": tuple(allowed_host or ()),
            "sync": not unsafe_no_sync,
        }
        explicit = _explicit_options(context, options)
        try:
            serve_chosen = _serve_pair if pair else _serve_one
            raise typer.Exit(serve_chosen(context, explicit, config, show_keys=show_connection_string))
        except InvalidSetting as error:
            raise _error_at_source(error, explicit, config) from None
    except ConfigurationError as error:
        _exit_with_error(error, _EXIT_MISUSE)
    except StartError as error:
        _exit_with_error(error, _EXIT_FAILED)


def _explicit_options(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line, without the defaults."""
    return {
        field: value for field, value in options.items() if _is_explicit(context, _PARAMETER_NAMES.get(field, field))
    }


def _is_explicit(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def _load_settings(explicit: Mapping[str, Any], config: Path | None) -> ServeSettings:
    from_file: Mapping[str, Any] = {}
    if config is not None:
        # Imported late: this also imports the filter language.
        from twinbus.server.config.file import read_config  # noqa: PLC0415

        from_file = read_config(config, explicit.get("name"))
    chosen = {**from_file, **explicit}
    if config is None:
        name = chosen.setdefault("name", DEFAULT_NAME)
        if "data" not in chosen:
            chosen = {"data": DATA_DIRECTORY / name, "ready_file": DATA_DIRECTORY / f"{name}.json", **chosen}
    if "name" not in chosen:
        raise ConfigurationError("NAME is missing: give the name of the namespace, or a --config that has it")
    if "data" not in chosen:
        raise ConfigurationError("--data is missing: give the data directory, or a --config that has it")
    settings = ServeSettings(**chosen)
    settings.check_explicit_ports(chosen)
    return settings


def _error_at_source(error: InvalidSetting, explicit: Mapping[str, Any], config: Path | None) -> ConfigurationError:
    """Return the error with its location in the file, if the value came from the file and not from an option."""
    if config is None or config.suffix.lower() != ".toml":
        return error
    from twinbus.model.entity_file.section import Location  # noqa: PLC0415
    from twinbus.server.config import toml  # noqa: PLC0415  # imported late for speed

    field = toml.field_of_option(error.option)
    if field is None or field in explicit:
        return error
    return ConfigurationError(str(toml.error_at_key(error, Location(config))))


def _run(
    settings: ServeSettings, on_ready: Callable[[ReadyFile], None] | None, reload_settings: Callable[[], ServeSettings]
) -> int:
    try:
        # Imported late, so that help and errors appear fast.
        from twinbus.server.runtime.process import run  # noqa: PLC0415

        return run(settings, on_ready, reload_settings)
    except StartError:
        raise
    except Exception as error:
        logger.debug("the server failed", exc_info=True)
        raise StartError(f"the server failed: {type(error).__name__}: {error}") from error


def _serve_one(context: typer.Context, explicit: Mapping[str, Any], config: Path | None, *, show_keys: bool) -> int:
    """Serve a namespace, and return the exit code."""
    if _is_explicit(context, "secondary_ports"):
        raise InvalidSetting("--secondary-ports", context.params["secondary_ports"], "needs --pair")
    reread = partial(_load_settings, explicit, config)
    settings = reread()
    is_default = "data" not in explicit and config is None
    return _run(settings, _choose_output(settings, show_keys=show_keys, is_default=is_default), reread)


def _choose_output(settings: ServeSettings, *, show_keys: bool, is_default: bool) -> Callable[[ReadyFile], None] | None:
    """Return the function that prints how to connect when the server is ready; None if nothing is to be printed."""
    from twinbus.cli.serving import guide  # noqa: PLC0415  # help and errors appear faster

    if show_keys:
        return guide.print_connection_strings
    if is_default or sys.stdout.isatty():
        return partial(guide.print_first_steps, ready_file=settings.ready_file)
    return None


def _serve_pair(context: typer.Context, explicit: Mapping[str, Any], config: Path | None, *, show_keys: bool) -> int:
    """Serve both namespaces of a pair, and return the exit code."""
    from twinbus.cli.serving import guide  # noqa: PLC0415  # help and errors appear faster
    from twinbus.cli.serving.pair import PairedServer, ServerPair, parse_ports, passed_options  # noqa: PLC0415

    if "ready_file" in explicit:
        reason = "cannot be used with --pair, which writes NAME.json and NAME-backup.json in the folder of --data"
        raise InvalidSetting("--ready-file", explicit["ready_file"], reason)
    folder, name = explicit.get("data", DATA_DIRECTORY), explicit.get("name", DEFAULT_NAME)
    servers: list[PairedServer] = []
    taken: dict[int, str] = {}
    for namespace, ports in ((name, {}), (f"{name}-backup", parse_ports(context.params["secondary_ports"]))):
        chosen = {**explicit, "name": namespace, "data": folder / namespace, **ports}
        settings = _load_settings(chosen, config)  # reports an invalid option once, before a server is started
        by_protocol = {protocol: getattr(settings, f"{protocol}_port") for protocol in PROTOCOLS}
        for port in filter(None, by_protocol.values()):
            if taken.setdefault(port, namespace) != namespace:
                raise InvalidSetting("--secondary-ports", port, f"is already used by {name}")
        servers.append(PairedServer(namespace, folder, by_protocol, passed_options(context)))
    files = [server.ready_file for server in servers]
    pair = ServerPair(servers, lambda ready_files: guide.print_pair_steps(ready_files, files, show_keys=show_keys))
    return asyncio.run(pair.run())


def _exit_with_error(error: StartError, code: int) -> NoReturn:
    typer.echo(f"twinbus serve: {error}", err=True)
    raise typer.Exit(code)
