"""Which scheme, host and port a connection string means to a manager."""

from __future__ import annotations

import datetime as dt

import pytest

from twinbus.client import NamespaceManager

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("endpoint", "ending", "base"),
    [
        ("contoso.servicebus.windows.net/", "", "https://contoso.servicebus.windows.net:443"),
        ("localhost:5443", "", "https://localhost:5443"),
        ("localhost", ";UseDevelopmentEmulator=true", "http://localhost:5300"),
        ("localhost:5301", ";UseDevelopmentEmulator=true", "http://localhost:5301"),
        ("[::1]:5443", "", "https://[::1]:5443"),
    ],
)
async def test_the_string_says_where(endpoint: str, ending: str, base: str) -> None:
    async with NamespaceManager.from_connection_string(f"Endpoint=sb://{endpoint};{KEY}{ending}") as manager:
        assert repr(manager) == f"<NamespaceManager {base}>"


@pytest.mark.parametrize("text", ["", "Endpoint=sb://localhost", f"{KEY}", f"Endpoint=http://localhost;{KEY}"])
def test_a_string_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="the connection string"):
        NamespaceManager.from_connection_string(text)


async def test_a_time_for_operations_is_seconds_or_a_duration() -> None:
    text = f"Endpoint=sb://localhost;{KEY}"
    for given in (90, dt.timedelta(minutes=1.5)):
        async with NamespaceManager.from_connection_string(text, operation_timeout=given) as manager:
            assert manager.settings.operation_timeout_s == 90
    with pytest.raises(ValueError, match="it must be more than nothing"):
        NamespaceManager.from_connection_string(text, operation_timeout=0)
