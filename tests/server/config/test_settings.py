"""An invalid option is refused at startup, in one line with the option, its value and the allowed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinbus.server.config.settings import InvalidSetting, ServeSettings, StartError, parse_size


def settings(**options: Any) -> ServeSettings:  # noqa: ANN401  # any option
    return ServeSettings(**{"name": "contoso", "data": Path("data"), **options})


def test_only_the_name_and_the_data_directory_are_required() -> None:
    assert settings().sync
    assert settings().min_free_bytes == 1_073_741_824


@pytest.mark.parametrize("name", ["c", "contoso", "contoso-backup", "C0ntoso", "c" * 50])
def test_a_namespace_name_has_letters_digits_and_hyphens(name: str) -> None:
    assert settings(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "1contoso", "-contoso", "contoso-", "con toso", "contoso.x", "c" * 51, "\u00e9t\u00e9", "a\n"]
)
def test_an_invalid_namespace_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^NAME '.*': a namespace name has 1 to 50"):
        settings(name=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers 0: it can be 1 to 64"),
        ({"workers": 65, "stores": 64}, "--workers 65: it can be 1 to 64"),
        (
            {"workers": 5, "stores": 4},
            "--workers 5: each worker needs a store of its own, but --stores is 4: raise --stores",
        ),
        ({"worker_timeout_s": 0.5}, "--worker-timeout 0.5: it can be 1 to 3600"),
        ({"stores": 0}, "--stores 0: it can be 1 to 64"),
        ({"stores": 65}, "--stores 65: it can be 1 to 64"),
        ({"amqp_port": -1}, "--amqp-port -1: it can be 0 to 65535"),
        ({"https_port": 65_536}, "--https-port 65536: it can be 0 to 65535"),
        ({"http_port": 5672}, "--http-port 5672: is already used by --amqp-port"),
        ({"host": "a b"}, "--host 'a b': is neither an address nor a host name"),
        ({"host": ""}, "--host '': is neither an address nor a host name"),
        ({"min_free_bytes": -1}, "--min-free -1: it can be 0 to 1152921504606846976"),
        ({"store_timeout_s": 0.0}, "--store-timeout 0.0: it can be 0.001 to 3600"),
        ({"store_timeout_s": float("nan")}, "--store-timeout nan: it can be 0.001 to 3600"),
        ({"max_connections": 0}, "--max-connections 0: it can be 1 to 1000000"),
        ({"log_level": "loud"}, "--log-level 'loud': it can be debug, info, warning, error"),
        ({"log_format": "xml"}, "--log-format 'xml': it can be text, json"),
        ({"tls_cert": Path("c.pem")}, "--tls-cert c.pem: needs --tls-key too"),
        ({"tls_key": Path("c.key")}, "--tls-key c.key: needs --tls-cert too"),
    ],
)
def test_the_error_names_the_option_the_value_and_the_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(StartError) as caught:
        settings(**options)
    assert isinstance(caught.value, InvalidSetting)
    assert str(caught.value) == message


def test_several_ports_may_be_0() -> None:
    assert settings(amqp_port=0, amqps_port=0, http_port=0, https_port=0).amqp_port == 0


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("123", 123), ("1GiB", 2**30), ("500MB", 500_000_000), ("2 kib", 2048), ("1TB", 10**12), ("7B", 7)],
)
def test_a_size_is_a_number_with_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size("--min-free", text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5GiB", "1 XB", "1e9", "1GiB1", "1" * 16])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^--min-free '.*': is not a size: write it as 1GiB, 500MB or 0$"):
        parse_size("--min-free", text)
