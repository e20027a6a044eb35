"""Partitioned entities over HTTP and with a generic AMQP client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from proton import Message

from tests.support.http_client import HttpClient
from tests.support.partitioned_namespace import FRAGMENTS, key_for_fragment
from tests.support.proton_client import connect_proton, send, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture
def http_client(server: ServerProcess) -> Iterator[HttpClient]:
    yield HttpClient(server)
    server.check_log()


@pytest.fixture
def partitioned(server: ServerProcess) -> str:
    return server.create_queue(EnablePartitioning="true")


def test_r121_messages_are_sent_received_and_settled_over_http(http_client: HttpClient, partitioned: str) -> None:
    for fragment in range(FRAGMENTS):
        assert (
            http_client.send_with_properties(partitioned, f"{fragment}", PartitionKey=key_for_fragment(fragment)).status
            == 201
        )
    seen: list[int] = []
    for number in range(FRAGMENTS):
        reply = http_client.peek_lock(partitioned)
        assert reply.status == 201
        fragment = int(reply.body)
        seen.append(fragment)
        assert reply.properties["SequenceNumber"] >> 48 == fragment
        assert http_client.request("POST", reply.location).status == 200, "the lock is renewed"
        if number % 2:
            assert http_client.request("DELETE", reply.location).status == 200
        else:
            assert http_client.request("PUT", reply.location).status == 200
            again = http_client.receive_and_delete(partitioned)
            assert again.status == 200
            seen[-1] = int(again.body)
    assert sorted(seen) == list(range(FRAGMENTS))
    assert http_client.receive_and_delete(partitioned, timeout=0).status == 204


def test_r100_q27_batches_over_http_go_to_the_fragments_of_their_keys(
    http_client: HttpClient, partitioned: str
) -> None:
    items = [
        {"Body": f"{number}", "BrokerProperties": {"PartitionKey": key_for_fragment(number)}}
        for number in range(FRAGMENTS)
    ]
    assert http_client.send_batch(partitioned, items).status == 201
    assert http_client.send_batch(partitioned, [{"Body": "without a key"}, {"Body": "without a key"}]).status == 201
    replies = [http_client.receive_and_delete(partitioned) for _ in range(FRAGMENTS + 2)]
    numbers = [json.loads(reply.headers["BrokerProperties"])["SequenceNumber"] >> 48 for reply in replies]
    keyless = {number for number, reply in zip(numbers, replies, strict=True) if not reply.body.isdigit()}
    assert len(keyless) == 1
    assert all(
        int(reply.body) == number for number, reply in zip(numbers, replies, strict=True) if reply.body.isdigit()
    )


def test_r108_two_different_keys_are_refused_over_http(http_client: HttpClient, partitioned: str) -> None:
    reply = http_client.send_with_properties(partitioned, "x", PartitionKey="pears", SessionId="apples")
    assert reply.status == 400
    assert "agree" in reply.detail


def test_r121_q32_a_generic_amqp_client_sends_and_receives(server: ServerProcess, partitioned: str) -> None:
    with connect_proton(server) as connection:
        keyed = [
            Message(body=f"{number}", annotations={"x-opt-partition-key": key_for_fragment(number)})
            for number in range(FRAGMENTS)
        ]
        send(connection, partitioned, *keyed)
        receiver = connection.create_receiver(partitioned, credit=FRAGMENTS)
        received = []
        for _ in range(FRAGMENTS):
            message = receiver.receive(timeout=20)
            assert message.annotations is not None
            received.append((str(message.body), message.annotations["x-opt-sequence-number"] >> 48))
            receiver.accept()
        assert sorted(received) == sorted((f"{number}", number) for number in range(FRAGMENTS))
        wait_for(connection, lambda: server.message_counts(partitioned) == (0, 0))


def test_all_fragments_are_available_after_a_restart_of_the_server(http_client: HttpClient, partitioned: str) -> None:
    for fragment in range(FRAGMENTS):
        http_client.send_with_properties(partitioned, f"{fragment}", PartitionKey=key_for_fragment(fragment))
    http_client.server.stop()
    http_client.server.start()
    assert sorted(int(http_client.receive_and_delete(partitioned).body) for _ in range(FRAGMENTS)) == list(
        range(FRAGMENTS)
    )
