"""A server started from a TOML file: clients see the entities, keys and limits of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError

from tests.support.server_process import QUEUE_ENTRY, run_server

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = """
name = "fabrikam"
[limits]
max_entities = 1
[[keys]]
name = "sender"
rights = ["Send"]
secret = "bG9uZy1lbm91Z2gtc2VjcmV0"
[[queues]]
name = "orders"
"""


def test_clients_see_the_entities_keys_and_limits_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "twinbus.toml"
    file.touch(mode=0o600)
    file.write_text(CONTENT)
    with run_server(tmp_path, f"--config={file}", name=None) as server:
        endpoint = f"Endpoint=sb://{server.host}:{server.amqp_port};UseDevelopmentEmulator=true"
        connection_string = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey=bG9uZy1lbm91Z2gtc2VjcmV0"
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("an order"))
            with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver("orders") as receiver:
                receiver.receive_messages(max_wait_time=5)
        assert "its limit" in server.request("PUT", "another", QUEUE_ENTRY.format(""), expected=403)
        assert server.message_counts("orders") == (1, 0)
        assert "bG9uZy1lbm91Z2gtc2VjcmV0" not in server.log
