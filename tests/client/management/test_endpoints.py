"""Scheme, host and port that a manager derives from a connection string."""

from __future__ import annotations

import datetime as dt

import pytest

from twinbus.client import NamespaceManager

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("endpoint", "suffix", "base"),
    [
        ("contoso.servicebus.windows.net/", "", "https://contoso.servicebus.windows.net:443"),
        ("localhost:5443", "", "https://localhost:5443"),
        ("localhost", ";UseDevelopmentEmulator=true", "http://localhost:5300"),
        ("localhost:5301", ";UseDevelopmentEmulator=true", "http://localhost:5301"),
        ("[::1]:5443", "", "https://[::1]:5443"),
    ],
)
async def test_scheme_host_and_port_come_from_the_connection_string(endpoint: str, suffix: str, base: str) -> None:
    async with NamespaceManager.from_connection_string(f"Endpoint=sb://{endpoint};{KEY}{suffix}") as manager:
        assert repr(manager) == f"<NamespaceManager {base}>"


@pytest.mark.parametrize("text", ["", "Endpoint=sb://localhost", f"{KEY}", f"Endpoint=http://localhost;{KEY}"])
def test_an_invalid_connection_string_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the connection string"):
        NamespaceManager.from_connection_string(text)


async def test_the_operation_timeout_is_seconds_or_a_timedelta() -> None:
    text = f"Endpoint=sb://localhost;{KEY}"
    for timeout in (90, dt.timedelta(minutes=1.5)):
        async with NamespaceManager.from_connection_string(text, operation_timeout=timeout) as manager:
            assert manager.settings.operation_timeout_s == 90
    with pytest.raises(ValueError, match="it must be positive"):
        NamespaceManager.from_connection_string(text, operation_timeout=0)
