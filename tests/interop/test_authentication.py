"""Who the peer is: ANONYMOUS and PLAIN are understood both ways, and a wrong password is refused both ways."""

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


async def test_a_proton_client_without_a_name_is_let_in_as_anonymous() -> None:
    async with serving(EchoServer) as server:
        visitor = LoginClient(server.port)
        await run(visitor)
        program = await server.accepted()
    assert visitor.was_open
    assert visitor.failures == []
    assert [init.mechanism for init in program.events_of(SaslInitReceived)] == ["ANONYMOUS"]


async def test_a_proton_client_with_name_and_password_is_let_in_by_plain() -> None:
    async with serving(EchoServer) as server:
        visitor = LoginClient(server.port, user=USER, password=PASSWORD)
        await run(visitor)
        program = await server.accepted()
    assert visitor.was_open
    assert visitor.failures == []
    assert [init.mechanism for init in program.events_of(SaslInitReceived)] == ["PLAIN"]


async def test_a_proton_client_with_a_wrong_password_is_refused() -> None:
    async with serving(EchoServer) as server:
        visitor = LoginClient(server.port, user=USER, password="looking-glass")
        await run(visitor)
        program = await server.accepted()
        await program.wait_for_event(ConnectionClosed)
    assert visitor.failures == ["amqp:unauthorized-access"]
    assert not visitor.was_open
    assert program.events_of(ConnectionOpened) == []
    assert len(program.events_of(ConnectionClosed)) == 1


@pytest.mark.parametrize(
    ("credentials", "user"),
    [
        (Credentials.anonymous(), "anonymous"),
        (Credentials.plain(PROTON_USER, proton_peers.PASSWORD), PROTON_USER),
    ],
    ids=["anonymous", "plain"],
)
async def test_our_client_is_let_in_by_a_proton_server(credentials: Credentials, user: str) -> None:
    server = ProtonServer()
    async with running(server) as port, connected(RecordingHandler(), port, credentials=credentials) as client:
        assert len(client.events_of(ConnectionOpened)) == 1
    assert server.user == user
    assert server.failures == []


async def test_our_client_hears_that_a_proton_server_refused_its_password() -> None:
    server, client = ProtonServer(), RecordingHandler()
    credentials = Credentials.plain(PROTON_USER, "wrecker")
    with pytest.raises(PermissionError):
        async with running(server) as port, connected(client, port, credentials=credentials):
            pass
    assert [failed.code for failed in client.events_of(SaslFailed)] == [SaslCode.AUTH]
    assert client.events_of(ConnectionOpened) == []
    assert server.user is None
