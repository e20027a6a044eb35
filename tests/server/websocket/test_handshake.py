"""Which requests become a WebSocket; all others are told why they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import read_to_end
from tests.server.websocket.raw_websocket import ACCEPT, KEY, SASL_HEADER, RawWebSocket, frame, request
from twinbus.server.websocket.frames import Opcode

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_the_answer_to_a_good_handshake(server: ServerProcess) -> None:
    with RawWebSocket(server) as client:
        lines = client.send_handshake(request()).split("\r\n")
    assert lines[0] == "HTTP/1.1 101 Switching Protocols"
    assert set(lines[1:]) == {
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Protocol: AMQPWSB10",
        f"Sec-WebSocket-Accept: {ACCEPT}",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/$ServiceBus/WebSocket"},
        {"path": "/%24servicebus/websocket/"},
        {"path": "/$servicebus/websocket?api=1"},
        {"Connection": "keep-alive, Upgrade", "Upgrade": "WebSocket"},
        {"Sec_WebSocket_Protocol": "amqp, AMQPWSB10"},
        {"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits"},
    ],
)
def test_good_handshakes_in_other_words(server: ServerProcess, changes: dict[str, str]) -> None:
    with RawWebSocket(server) as client:
        assert client.send_handshake(request(**changes)).startswith("HTTP/1.1 101 ")
        client.send(frame(Opcode.BINARY, SASL_HEADER))
        assert client.receive_frame()[1].startswith(SASL_HEADER)


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"Upgrade": None}, 426, "this address is a WebSocket"),
        ({"Upgrade": "h2c"}, 426, "this address is a WebSocket"),
        ({"Connection": "close"}, 426, "this address is a WebSocket"),
        ({"Sec_WebSocket_Version": "12"}, 426, "Sec-WebSocket-Version has to be 13"),
        ({"Sec_WebSocket_Version": None}, 426, "Sec-WebSocket-Version has to be 13"),
        ({"Sec_WebSocket_Key": None}, 400, "Sec-WebSocket-Key has to be there once"),
        ({"Sec_WebSocket_Key": "short"}, 400, "Sec-WebSocket-Key has to be there once"),
        ({"Sec_WebSocket_Key": KEY + "\r\nSec-WebSocket-Key: " + KEY}, 400, "Sec-WebSocket-Key has to be there once"),
        ({"Sec_WebSocket_Protocol": None}, 400, "has to offer AMQPWSB10"),
        ({"Sec_WebSocket_Protocol": "amqp"}, 400, "has to offer AMQPWSB10"),
        ({"method": "POST"}, 405, "'POST' is not for this address"),
        ({"version": "1.0"}, 400, "with HTTP/1.1"),
        ({"Content_Length": "5"}, 400, "without a body"),
        ({"Transfer_Encoding": "chunked"}, 400, "without a body"),
        ({"path": "/orders"}, 401, "no Authorization header"),
    ],
)
def test_bad_handshakes(server: ServerProcess, changes: dict[str, str | None], status: int, told: str) -> None:
    with RawWebSocket(server) as client:
        client.socket.sendall(request(**{"Connection": "Upgrade, close", **changes}))  # type: ignore[arg-type]
        answer = read_to_end(client.socket).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert told in answer
    assert ("sec-websocket-version: 13" in answer) == (status == 426)


def test_what_comes_with_the_handshake_is_not_lost(server: ServerProcess) -> None:
    with RawWebSocket(server) as client:
        early = frame(Opcode.BINARY, SASL_HEADER)
        assert client.send_handshake(request() + early[:5]).startswith("HTTP/1.1 101 ")
        client.send(early[5:])
        assert client.receive_frame()[1].startswith(SASL_HEADER)
