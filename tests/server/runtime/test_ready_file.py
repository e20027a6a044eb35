"""The ready file is written atomically, has connection strings for the SDKs, and is removed by its server."""

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


def make_ready_file(pid: int = os.getpid()) -> ReadyFile:
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


def test_the_ready_file_has_the_documented_fields(tmp_path: Path) -> None:
    make_ready_file().write(tmp_path / "ready.json")
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


def test_the_ready_file_is_readable_by_its_owner_only_and_leaves_no_other_file(tmp_path: Path) -> None:
    make_ready_file().write(tmp_path / "ready.json")
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_the_repr_shows_no_key() -> None:
    assert KEY.primary not in repr(make_ready_file()) + str(make_ready_file())


def test_the_server_that_wrote_the_ready_file_removes_it(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    make_ready_file().write(file)
    make_ready_file().remove(file)
    assert not file.exists()
    make_ready_file().remove(file)


def test_the_ready_file_of_a_later_server_stays(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    make_ready_file().write(file)
    make_ready_file(pid=1).write(file)
    make_ready_file().remove(file)
    assert msgspec.json.decode(file.read_bytes(), type=ReadyFile).pid == 1


def test_a_file_with_other_content_stays(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_bytes(b"\xff not ours")
    make_ready_file().remove(file)
    assert file.exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"missing/ready\.json cannot be written: No such file or directory"):
        make_ready_file().write(tmp_path / "missing" / "ready.json")


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("127.0.0.1", "sb://localhost:1"),
        ("0.0.0.0", "sb://localhost:1"),  # noqa: S104  # no socket is opened
        ("::", "sb://localhost:1"),
        ("10.1.2.3", "sb://10.1.2.3:1"),
        ("fd00::1", "sb://[fd00::1]:1"),
        ("bus.example", "sb://bus.example:1"),
    ],
)
def test_connection_strings_have_a_host_that_clients_can_reach(host: str, endpoint: str) -> None:
    assert connection_string(host, 1, KEY, is_emulator=True).startswith(f"Endpoint={endpoint};")


def test_the_sdks_clients_find_host_and_port_in_the_connection_strings() -> None:
    messaging = ServiceBusClient.from_connection_string(make_ready_file().connection_string or "")
    assert messaging.fully_qualified_namespace == "localhost:5672"
    messaging.close()
    with ServiceBusAdministrationClient.from_connection_string(
        make_ready_file().admin_connection_string or ""
    ) as administration:
        assert administration.fully_qualified_namespace == "localhost:5443"
