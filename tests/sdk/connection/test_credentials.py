"""Credential objects of the SDK: a named key or a shared access signature is accepted, a bearer token is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


class Bearer:
    """Credential like those of azure-identity, with a token of Microsoft Entra ID."""

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:  # noqa: ANN401  # those of the SDK
        return AccessToken("e30.e30.e30", 4_000_000_000)


def credential(server: ServerProcess, kind: str) -> Any:  # noqa: ANN401  # of any kind
    if kind == "key":
        return AzureNamedKeyCredential(server.key_name, server.key)
    return AzureSasCredential(server.token(""))


def send(server: ServerProcess, queue: str, client_credential: Any) -> None:  # noqa: ANN401  # of any kind
    with (
        ServiceBusClient(server.host, client_credential, connection_verify=server.ca_file, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.parametrize("kind", ["key", "signature"])
def test_the_sync_client_can_send_with_a_credential(server: ServerProcess, kind: str) -> None:
    queue = server.create_queue()
    send(server, queue, credential(server, kind))
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("kind", ["key", "signature"])
def test_the_aio_client_can_send_with_a_credential(server: ServerProcess, kind: str) -> None:
    queue = server.create_queue()

    async def run() -> None:
        client_credential = credential(server, kind)
        async with (
            AsyncServiceBusClient(
                server.host, client_credential, connection_verify=server.ca_file, retry_total=0
            ) as client,
            client.get_queue_sender(queue) as sender,
        ):
            await sender.send_messages(ServiceBusMessage("x"))

    asyncio.run(asyncio.wait_for(run(), 60))
    assert server.message_counts(queue) == (1, 0)


def administration(server: ServerProcess, client_credential: Any) -> ServiceBusAdministrationClient:  # noqa: ANN401  # of any kind
    host = f"{server.host}:{server.https_port}"
    return ServiceBusAdministrationClient(host, client_credential, connection_verify=server.ca_file, retry_total=0)


def test_a_bearer_token_is_refused_by_amqp_and_http(server: ServerProcess) -> None:
    queue = server.create_queue()
    with pytest.raises(ServiceBusAuthenticationError):
        send(server, queue, Bearer())
    with administration(server, Bearer()) as client, pytest.raises(ClientAuthenticationError):
        client.get_namespace_properties()
    assert server.message_counts(queue) == (0, 0)
