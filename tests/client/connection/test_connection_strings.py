"""A connection string is read, or the error says what is wrong with it and never the key."""

from __future__ import annotations

import pytest

from twinbus.client import ConnectionString, MessagingFactory

KEY = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def test_all_that_it_says_is_read() -> None:
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}=;EntityPath=orders;"
    read = ConnectionString.parse(text)
    assert (read.host, read.namespace, read.key_name, read.key) == (
        "contoso.servicebus.windows.net",
        "contoso",
        "Root",
        "c2VjcmV0=",
    )
    assert (read.amqp_port, read.entity_path, read.is_emulator) == (5671, "orders", False)


def test_the_emulators_is_spoken_to_without_tls() -> None:
    read = ConnectionString.parse(f"endpoint=sb://localhost:7000;{KEY};UseDevelopmentEmulator=True")
    assert (read.address, read.is_emulator, read.namespace) == ("localhost:7000", True, None)
    assert ConnectionString.parse(f"Endpoint=sb://10.0.0.1;{KEY};UseDevelopmentEmulator=true").amqp_port == 5672


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it can have"),
        ("nonsense", "it can have"),
        (KEY, "no Endpoint"),
        (f"Endpoint=http://contoso/;{KEY}", "it is like sb://"),
        (f"Endpoint=sb://;{KEY}", "it is like sb://"),
        (f"Endpoint=sb://contoso:port/;{KEY}", "[Pp]ort"),
        ("Endpoint=sb://contoso/", "needs either"),
        ("Endpoint=sb://contoso/;SharedAccessKeyName=Root", "needs either"),
        (f"Endpoint=sb://contoso/;{KEY};SharedAccessSignature=x", "needs either"),
        (f"Endpoint=sb://contoso/;{KEY};SharedAccessKey=d2hhdA", "twice"),
        (f"Endpoint=sb://contoso/;{KEY};Colour=red", "'Colour'"),
    ],
)
def test_what_is_wrong_is_said_without_the_key(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        MessagingFactory.from_connection_string(text)
    assert "c2VjcmV0" not in str(raised.value)
