"""Authentication: ANONYMOUS and PLAIN with twinbus as server and as client, and refusal of a wrong password."""

from __future__ import annotations

import pytest

from tests.interop import proton_peers
from tests.interop.proton_peers import ProtonClient, ProtonEvent, ProtonServer, run, running
from tests.interop.twinbus_peers import PASSWORD, USER, EchoServer, RecordingHandler, connected, serving
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SaslFailed, SaslInitReceived
from twinbus.amqp.sasl import Credentials, SaslCode

PROTON_USER = f"{proton_peers.USER}@{proton_peers.REALM}"


class LoginClient(ProtonClient):
    """Opens a connection and closes it."""

    def on_connection_opened(self, event: ProtonEvent) -> None:
        super().on_connection_opened(event)
        event.connection.close()


async def test_a_proton_client_without_credentials_logs_in_with_anonymous() -> None:
    async with serving(EchoServer) as server:
        client = LoginClient(server.port)
        await run(client)
        handler = await server.accepted()
    assert client.was_open
    assert client.failures == []
    assert [init.mechanism for init in handler.events_of(SaslInitReceived)] == ["ANONYMOUS"]


async def test_a_proton_client_with_name_and_password_logs_in_with_plain() -> None:
    async with serving(EchoServer) as server:
        client = LoginClient(server.port, user=USER, password=PASSWORD)
        await run(client)
        handler = await server.accepted()
    assert client.was_open
    assert client.failures == []
    assert [init.mechanism for init in handler.events_of(SaslInitReceived)] == ["PLAIN"]


async def test_a_proton_client_with_a_wrong_password_is_refused() -> None:
    async with serving(EchoServer) as server:
        client = LoginClient(server.port, user=USER, password="looking-glass")
        await run(client)
        handler = await server.accepted()
        await handler.wait_for_event(ConnectionClosed)
    assert client.failures == ["amqp:unauthorized-access"]
    assert not client.was_open
    assert handler.events_of(ConnectionOpened) == []
    assert len(handler.events_of(ConnectionClosed)) == 1


@pytest.mark.parametrize(
    ("credentials", "user"),
    [
        (Credentials.anonymous(), "anonymous"),
        (Credentials.plain(PROTON_USER, proton_peers.PASSWORD), PROTON_USER),
    ],
    ids=["anonymous", "plain"],
)
async def test_our_client_logs_in_to_a_proton_server(credentials: Credentials, user: str) -> None:
    server = ProtonServer()
    async with running(server) as port, connected(RecordingHandler(), port, credentials=credentials) as client:
        assert len(client.events_of(ConnectionOpened)) == 1
    assert server.user == user
    assert server.failures == []


async def test_our_client_reports_that_a_proton_server_refused_its_password() -> None:
    server, client = ProtonServer(), RecordingHandler()
    credentials = Credentials.plain(PROTON_USER, "wrecker")
    with pytest.raises(PermissionError):
        async with running(server) as port, connected(client, port, credentials=credentials):
            pass
    assert [failed.code for failed in client.events_of(SaslFailed)] == [SaslCode.AUTH]
    assert client.events_of(ConnectionOpened) == []
    assert server.user is None
