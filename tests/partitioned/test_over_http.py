"""Partitioned entities over HTTP and over plain AMQP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from proton import Message

from tests.http_data.web import Web
from tests.partitioned.bus import FRAGMENTS, key_of
from tests.plain.proton_client import proton, send, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.served import Served


@pytest.fixture
def web(server: Served) -> Iterator[Web]:
    yield Web(server)
    server.check_log()


@pytest.fixture
def partitioned(server: Served) -> str:
    return server.make_queue(EnablePartitioning="true")


def test_r121_messages_are_sent_received_and_settled_over_http(web: Web, partitioned: str) -> None:
    for fragment in range(FRAGMENTS):
        assert web.send_with(partitioned, f"{fragment}", PartitionKey=key_of(fragment)).status == 201
    seen: list[int] = []
    for number in range(FRAGMENTS):
        reply = web.lock(partitioned)
        assert reply.status == 201
        fragment = int(reply.body)
        seen.append(fragment)
        assert reply.properties["SequenceNumber"] >> 48 == fragment
        assert web.call("POST", reply.place).status == 200, "the lock is renewed"
        if number % 2:
            assert web.call("DELETE", reply.place).status == 200
        else:
            assert web.call("PUT", reply.place).status == 200
            again = web.take(partitioned)
            assert again.status == 200
            seen[-1] = int(again.body)
    assert sorted(seen) == list(range(FRAGMENTS))
    assert web.take(partitioned, timeout=0).status == 204


def test_r100_q27_batches_over_http_go_where_their_keys_lead(web: Web, partitioned: str) -> None:
    items = [{"Body": f"{number}", "BrokerProperties": {"PartitionKey": key_of(number)}} for number in range(FRAGMENTS)]
    assert web.send_batch(partitioned, items).status == 201
    assert web.send_batch(partitioned, [{"Body": "without a key"}, {"Body": "without a key"}]).status == 201
    found = [web.take(partitioned) for _ in range(FRAGMENTS + 2)]
    numbers = [json.loads(reply.headers["BrokerProperties"])["SequenceNumber"] >> 48 for reply in found]
    keyless = {number for number, reply in zip(numbers, found, strict=True) if not reply.body.isdigit()}
    assert len(keyless) == 1
    assert all(int(reply.body) == number for number, reply in zip(numbers, found, strict=True) if reply.body.isdigit())


def test_r108_two_keys_that_differ_are_refused_over_http(web: Web, partitioned: str) -> None:
    reply = web.send_with(partitioned, "x", PartitionKey="pears", SessionId="apples")
    assert reply.status == 400
    assert "agree" in reply.detail


def test_r121_q32_any_amqp_client_sends_and_receives(server: Served, partitioned: str) -> None:
    with proton(server) as connection:
        keyed = [
            Message(body=f"{number}", annotations={"x-opt-partition-key": key_of(number)})
            for number in range(FRAGMENTS)
        ]
        send(connection, partitioned, *keyed)
        receiver = connection.create_receiver(partitioned, credit=FRAGMENTS)
        found = []
        for _ in range(FRAGMENTS):
            message = receiver.receive(timeout=20)
            assert message.annotations is not None
            found.append((str(message.body), message.annotations["x-opt-sequence-number"] >> 48))
            receiver.accept()
        assert sorted(found) == sorted((f"{number}", number) for number in range(FRAGMENTS))
        until(connection, lambda: server.counts(partitioned) == (0, 0))


def test_a_server_that_was_stopped_has_all_fragments_again(web: Web, partitioned: str) -> None:
    for fragment in range(FRAGMENTS):
        web.send_with(partitioned, f"{fragment}", PartitionKey=key_of(fragment))
    web.server.stop()
    web.server.start()
    assert sorted(int(web.take(partitioned).body) for _ in range(FRAGMENTS)) == list(range(FRAGMENTS))
