"""Malformed frames close their own connection, with a reason where possible, and no other connection."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import connect_raw
from twinbus.amqp.message import data

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

FRAMES = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "amqp:connection:framing-error"),
    "oversized": (bytes.fromhex("7fffffff02000000"), "amqp:connection:framing-error"),
    "too small": (bytes.fromhex("0000000702000000"), "amqp:connection:framing-error"),
    "wrong offset": (bytes.fromhex("0000000801000000"), "amqp:connection:framing-error"),
    "offset beyond": (bytes.fromhex("00000008ff000000"), "amqp:connection:framing-error"),
    "unknown type": (bytes.fromhex("0000000802070000"), "amqp:connection:framing-error"),
    "no performative": (bytes.fromhex("000000090200000040"), "amqp:decode-error"),
    "unknown performative": (bytes.fromhex("0000000c0200000000539945"), "amqp:decode-error"),
    "truncated list": (bytes.fromhex("0000000e020000000053 12c0ff14".replace(" ", "")), "amqp:decode-error"),
    "second open": (bytes.fromhex("00000011020000000053 10c00401a10178".replace(" ", "")), "amqp:illegal-state"),
}
PREFACES = {
    "amqp 0.9": b"AMQP\x00\x00\x09\x01",
    "zeros": bytes(100),
}


async def assert_others_work(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as other:
        assert await other.send(await other.attach_sender(queue), data(b"all is well")) is None
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("name", FRAMES)
async def test_a_malformed_frame_closes_the_connection_with_a_reason(
    server: ServerProcess, queue: str, name: str
) -> None:
    frame, condition = FRAMES[name]
    async with connect_raw(server) as client:
        await client.attach_sender(queue)
        client.peer.transport.write(frame)
        assert await client.close_condition() == condition
    await assert_others_work(server, queue)


@pytest.mark.parametrize("name", PREFACES)
async def test_another_protocol_gets_the_amqp_header_and_is_disconnected(
    server: ServerProcess, queue: str, name: str
) -> None:
    with socket.create_connection((server.host, server.amqp_port), timeout=10) as connection:
        connection.sendall(PREFACES[name])
        answer = b""
        while chunk := connection.recv(1_000):
            answer += chunk
    assert answer[:4] == b"AMQP"
    await assert_others_work(server, queue)


async def test_aborting_in_the_middle_of_a_message_does_not_disturb_others(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        link.send(data(bytes(200_000)))
        client.peer.flush()
        client.peer.transport.abort()
    async with connect_raw(server) as client:
        await client.attach_sender(queue)
        # A transfer with the more flag, and then the connection is aborted.
        client.peer.transport.write(
            bytes.fromhex("00000021020000000053 14c01406 5200 43 a00101 43 42 41".replace(" ", "") + "00" * 10)
        )
        client.peer.transport.abort()
    async with connect_raw(server) as other:
        assert await other.send(await other.attach_sender(queue), data(b"all is well")) is None
