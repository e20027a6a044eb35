"""Valid handshakes become a WebSocket; all other requests are refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import read_to_end
from tests.server.websocket.raw_websocket import ACCEPT, KEY, SASL_HEADER, RawWebSocket, frame, request
from twinbus.server.websocket.frames import Opcode

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_a_valid_handshake_gets_a_101_response(server: ServerProcess) -> None:
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
def test_other_spellings_of_a_valid_handshake_are_accepted(server: ServerProcess, changes: dict[str, str]) -> None:
    with RawWebSocket(server) as client:
        assert client.send_handshake(request(**changes)).startswith("HTTP/1.1 101 ")
        client.send(frame(Opcode.BINARY, SASL_HEADER))
        assert client.receive_frame()[1].startswith(SASL_HEADER)


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"Upgrade": None}, 426, "this address is a WebSocket"),
        ({"Upgrade": "h2c"}, 426, "this address is a WebSocket"),
        ({"Connection": "close"}, 426, "this address is a WebSocket"),
        ({"Sec_WebSocket_Version": "12"}, 426, "Sec-WebSocket-Version must be 13"),
        ({"Sec_WebSocket_Version": None}, 426, "Sec-WebSocket-Version must be 13"),
        ({"Sec_WebSocket_Key": None}, 400, "Sec-WebSocket-Key must occur once"),
        ({"Sec_WebSocket_Key": "short"}, 400, "Sec-WebSocket-Key must occur once"),
        ({"Sec_WebSocket_Key": KEY + "\r\nSec-WebSocket-Key: " + KEY}, 400, "Sec-WebSocket-Key must occur once"),
        ({"Sec_WebSocket_Protocol": None}, 400, "must offer AMQPWSB10"),
        ({"Sec_WebSocket_Protocol": "amqp"}, 400, "must offer AMQPWSB10"),
        ({"method": "POST"}, 405, "'POST' is not allowed for this path"),
        ({"version": "1.0"}, 400, "must use HTTP/1.1"),
        ({"Content_Length": "5"}, 400, "have no body"),
        ({"Transfer_Encoding": "chunked"}, 400, "have no body"),
        ({"path": "/orders"}, 401, "no Authorization header"),
    ],
)
def test_an_invalid_handshake_is_refused_with_a_reason(
    server: ServerProcess, changes: dict[str, str | None], status: int, reason: str
) -> None:
    with RawWebSocket(server) as client:
        client.socket.sendall(request(**{"Connection": "Upgrade, close", **changes}))  # type: ignore[arg-type]
        answer = read_to_end(client.socket).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert reason in answer
    assert ("sec-websocket-version: 13" in answer) == (status == 426)


def test_frames_sent_with_the_handshake_are_not_lost(server: ServerProcess) -> None:
    with RawWebSocket(server) as client:
        early = frame(Opcode.BINARY, SASL_HEADER)
        assert client.send_handshake(request() + early[:5]).startswith("HTTP/1.1 101 ")
        client.send(early[5:])
        assert client.receive_frame()[1].startswith(SASL_HEADER)
