"""`twinbus serve`: serve a namespace until told to stop.

Owns: the options as they are typed, their help, and the exit codes: 0 after a clean stop, 1 if the server cannot start
or has failed, 2 for an option or a configuration file that cannot be. What is valid, and the defaults, are in
`server.settings`; what a file says is for `server.config` to read. Options go before the file.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from twinbus.server.config.settings import (
    DEFAULT_STORES,
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
"""Fields of the settings whose options have other names."""

logger = logging.getLogger(__name__)


def serve(  # noqa: PLR0913  # one for each option
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Of the namespace: letters, digits and hyphens. --config can have it.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory that keeps everything; made at the first start. --config can have it.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to serve and which entities to make: .toml, or Config.json of Microsoft's emulator.",
            show_default=False,
        ),
    ] = None,
    emulator_key: Annotated[
        bool,
        typer.Option("--emulator-key", help="The key of Microsoft's emulator is good too; on loopback addresses only."),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --emulator-key: a host name that clients and web pages may use; may be given several times.",
            show_default="the server's own names",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = _DEFAULTS.host,
    amqp_port: Annotated[
        str,
        typer.Option(metavar="PORT", help="AMQP without TLS. For this and the other ports: 0 is any, none closes it."),
    ] = str(_DEFAULTS.amqp_port),
    amqps_port: Annotated[str, typer.Option(metavar="PORT", help="AMQP with TLS.")] = str(_DEFAULTS.amqps_port),
    http_port: Annotated[str, typer.Option(metavar="PORT", help="HTTP without TLS.")] = str(_DEFAULTS.http_port),
    https_port: Annotated[
        str, typer.Option(metavar="PORT", help="HTTP with TLS, which the SDKs' administration clients use.")
    ] = str(_DEFAULTS.https_port),
    plaintext: Annotated[
        list[str] | None,
        typer.Option(
            metavar="amqp|http",
            help="Open this port without TLS although --host is reached from other machines; may be given twice.",
            show_default="on loopback addresses only",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="NUMBER", help="Processes that serve it; no more than there are stores.")
    ] = _DEFAULTS.workers,
    worker_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds after which a silent one of several processes is killed.")
    ] = _DEFAULTS.worker_timeout_s,
    stores: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="Databases that entities are spread over; more can be added later, none removed.",
            show_default=f"as many as --data has; {DEFAULT_STORES} if it is new",
        ),
    ] = None,
    store_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Where to make stores; given several times, in turn. None is moved.",
            show_default="in --data",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written when it serves, with ports and connection strings.")
    ] = None,
    show_connection_string: Annotated[
        bool,
        typer.Option("--show-connection-string", help="Print the connection strings, key and all, when it serves."),
    ] = False,
    min_free: Annotated[
        str,
        typer.Option(metavar="SIZE", help="With less free on the disk of a store, sends to it are refused: 500MB, 0."),
    ] = "1GiB",
    store_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds after which a silent store counts as unavailable.")
    ] = _DEFAULTS.store_timeout_s,
    max_connections: Annotated[
        int, typer.Option(metavar="NUMBER", help="Connections at a time, over all ports of a process.")
    ] = _DEFAULTS.max_connections,
    max_unauthenticated: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Connections of one address without a valid key or token; at most half of --max-connections.",
        ),
    ] = _DEFAULTS.max_unauthenticated,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own certificate, with its chain.", show_default="one for development"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of your own certificate, without a password.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = _DEFAULTS.log_level,
    log_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="text or json, one line per record.")
    ] = _DEFAULTS.log_format,
    measure_pauses: Annotated[
        bool,
        typer.Option("--measure-pauses", help="Measure how long the loop cannot do anything; /health shows it."),
    ] = False,
    no_metering: Annotated[
        bool, typer.Option("--no-metering", help="Do not write down what clients use.", show_default=False)
    ] = False,
    usage_days: Annotated[
        int, typer.Option(metavar="NUMBER", help="How long what clients used is kept; 0: for ever.")
    ] = _DEFAULTS.usage_days,
    unsafe_no_sync: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sync", hidden=True, help="For tests and measurements: accepted messages can be lost."
        ),
    ] = False,
) -> None:
    """Serve a namespace until told to stop (SIGTERM, Ctrl-C). SIGHUP reloads certificates, keys and log level."""
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
        given = _explicit_options(context, options)
        reread = partial(_load_settings, given, config)
        try:
            raise typer.Exit(_run(reread(), _print_connection_strings if show_connection_string else None, reread))
        except InvalidSetting as error:
            raise _error_at_source(error, given, config) from None
    except ConfigurationError as error:
        _exit_with_error(error, _EXIT_MISUSE)
    except StartError as error:
        _exit_with_error(error, _EXIT_FAILED)


def _explicit_options(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were typed, and so are not defaults."""
    sources = {field: context.get_parameter_source(_PARAMETER_NAMES.get(field, field)) for field in options}
    typed = {field for field, source in sources.items() if source is not None and source.name != "DEFAULT"}
    return {field: value for field, value in options.items() if field in typed}


def _load_settings(explicit: Mapping[str, Any], config: Path | None) -> ServeSettings:
    from_file: Mapping[str, Any] = {}
    if config is not None:
        # Not before it is needed: this reads filters, too.
        from twinbus.server.config.file import read_config  # noqa: PLC0415

        from_file = read_config(config, explicit.get("name"))
    chosen = {**from_file, **explicit}
    if "name" not in chosen:
        raise ConfigurationError("NAME is missing: say which namespace to serve, or give a --config that does")
    if "data" not in chosen:
        raise ConfigurationError(
            "--data is missing: say which directory keeps everything, or give a --config that does"
        )
    settings = ServeSettings(**chosen)
    settings.check_explicit_ports(chosen)
    return settings


def _error_at_source(error: InvalidSetting, explicit: Mapping[str, Any], config: Path | None) -> ConfigurationError:
    """The error at its key in the file, if the value came from there and not from an option."""
    if config is None or config.suffix.lower() != ".toml":
        return error
    from twinbus.server.config import toml  # noqa: PLC0415  # not before it is needed
    from twinbus.server.config.section import Location  # noqa: PLC0415

    field = toml.field_of_option(error.option)
    return error if field is None or field in explicit else toml.error_at_key(error, Location(config))


def _run(
    settings: ServeSettings, on_ready: Callable[[ReadyFile], None] | None, reload_settings: Callable[[], ServeSettings]
) -> int:
    try:
        # Not before it is needed: help and errors should not wait for all that a server needs.
        from twinbus.server.runtime.process import run  # noqa: PLC0415

        return run(settings, on_ready, reload_settings)
    except StartError:
        raise
    except Exception as error:
        logger.debug("the server failed", exc_info=True)
        raise StartError(f"the server failed: {type(error).__name__}: {error}") from error


def _print_connection_strings(ready: ReadyFile) -> None:
    typer.echo(f"Namespace {ready.namespace} is served. For the messaging clients of the Azure SDKs:")
    typer.echo(f"    {ready.connection_string or 'none: no AMQP port is open'}")
    typer.echo(f"For their administration clients, which have to trust {ready.ca_file or 'your authority'}:")
    typer.echo(f"    {ready.admin_connection_string or 'none: the https port is not open'}")


def _exit_with_error(error: StartError, code: int) -> NoReturn:
    typer.echo(f"twinbus serve: {error}", err=True)
    raise typer.Exit(code)
