"""Parsing connection strings: errors name the invalid field and never contain the key."""

from __future__ import annotations

import pytest

from twinbus.client import ConnectionString, MessagingFactory

KEY = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def test_all_fields_are_parsed() -> None:
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}=;EntityPath=orders;"
    parsed = ConnectionString.parse(text)
    assert (parsed.host, parsed.namespace, parsed.key_name, parsed.key) == (
        "contoso.servicebus.windows.net",
        "contoso",
        "Root",
        "c2VjcmV0=",
    )
    assert (parsed.amqp_port, parsed.entity_path, parsed.is_emulator) == (5671, "orders", False)


def test_a_connection_string_of_the_emulator_means_no_tls() -> None:
    parsed = ConnectionString.parse(f"endpoint=sb://localhost:7000;{KEY};UseDevelopmentEmulator=True")
    assert (parsed.address, parsed.is_emulator, parsed.namespace) == ("localhost:7000", True, None)
    assert ConnectionString.parse(f"Endpoint=sb://10.0.0.1;{KEY};UseDevelopmentEmulator=true").amqp_port == 5672


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown field"),
        ("nonsense", "unknown field"),
        (KEY, "no Endpoint"),
        (f"Endpoint=http://contoso/;{KEY}", "use sb://"),
        (f"Endpoint=sb://;{KEY}", "use sb://"),
        (f"Endpoint=sb://contoso:port/;{KEY}", "[Pp]ort"),
        ("Endpoint=sb://contoso/", "needs either"),
        ("Endpoint=sb://contoso/;SharedAccessKeyName=Root", "needs either"),
        (f"Endpoint=sb://contoso/;{KEY};SharedAccessSignature=x", "needs either"),
        (f"Endpoint=sb://contoso/;{KEY};SharedAccessKey=d2hhdA", "twice"),
        (f"Endpoint=sb://contoso/;{KEY};Colour=red", "'Colour'"),
    ],
)
def test_the_error_for_an_invalid_connection_string_does_not_contain_the_key(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        MessagingFactory.from_connection_string(text)
    assert "c2VjcmV0" not in str(raised.value)
