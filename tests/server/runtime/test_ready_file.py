"""The ready file appears whole when a server serves, opens the SDKs' clients, and goes with its server."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.server.auth.keys import Key
from twinbus.server.config.settings import StartError
from twinbus.server.runtime.ready_file import ReadyFile, connection_string

if TYPE_CHECKING:
    from pathlib import Path

KEY = Key("RootManageSharedAccessKey", "c2VjcmV0/c2VjcmV0+c2VjcmV0c2VjcmV0c2VjcmV0c2U=")


def ready(pid: int = os.getpid()) -> ReadyFile:
    return ReadyFile(
        namespace="contoso",
        amqp_port=5672,
        amqps_port=5671,
        http_port=5300,
        https_port=5443,
        connection_string=connection_string("127.0.0.1", 5672, KEY, is_emulator=True),
        admin_connection_string=connection_string("127.0.0.1", 5443, KEY, is_emulator=False),
        ca_file="/data/tls/ca.pem",
        pid=pid,
    )


def test_it_has_the_fields_that_others_build_on(tmp_path: Path) -> None:
    ready().write(tmp_path / "ready.json")
    assert json.loads((tmp_path / "ready.json").read_text()) == {
        "namespace": "contoso",
        "amqp_port": 5672,
        "amqps_port": 5671,
        "http_port": 5300,
        "https_port": 5443,
        "connection_string": "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={KEY.primary};UseDevelopmentEmulator=true",
        "admin_connection_string": "Endpoint=sb://localhost:5443;SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={KEY.primary}",
        "ca_file": "/data/tls/ca.pem",
        "pid": os.getpid(),
    }


def test_it_is_for_its_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    ready().write(tmp_path / "ready.json")
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_the_repr_shows_no_key() -> None:
    assert KEY.primary not in repr(ready()) + str(ready())


def test_it_goes_with_the_server_that_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    ready().write(file)
    ready().remove(file)
    assert not file.exists()
    ready().remove(file)


def test_the_file_of_a_later_server_stays(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    ready().write(file)
    ready(pid=1).write(file)
    ready().remove(file)
    assert msgspec.json.decode(file.read_bytes(), type=ReadyFile).pid == 1


def test_a_file_that_is_something_else_by_now_stays(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_bytes(b"\xff not ours")
    ready().remove(file)
    assert file.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"missing/ready\.json cannot be written: No such file or directory"):
        ready().write(tmp_path / "missing" / "ready.json")


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("127.0.0.1", "sb://localhost:1"),
        ("0.0.0.0", "sb://localhost:1"),  # noqa: S104  # nobody listens here
        ("::", "sb://localhost:1"),
        ("10.1.2.3", "sb://10.1.2.3:1"),
        ("fd00::1", "sb://[fd00::1]:1"),
        ("bus.example", "sb://bus.example:1"),
    ],
)
def test_clients_are_told_the_host_that_they_can_reach(host: str, endpoint: str) -> None:
    assert connection_string(host, 1, KEY, is_emulator=True).startswith(f"Endpoint={endpoint};")


def test_the_sdks_clients_find_host_and_port_in_the_connection_strings() -> None:
    messaging = ServiceBusClient.from_connection_string(ready().connection_string or "")
    assert messaging.fully_qualified_namespace == "localhost:5672"
    messaging.close()
    with ServiceBusAdministrationClient.from_connection_string(ready().admin_connection_string or "") as administration:
        assert administration.fully_qualified_namespace == "localhost:5443"
