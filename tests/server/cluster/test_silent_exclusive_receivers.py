"""If an exclusive receiver's client falls silent, every process that owns fragments releases its claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.amqp.test_exclusive_receivers import has_ended
from tests.server.amqp.test_silence_limits import IF_FREE, LOCKED, claim_until_silent, claim_when_free
from tests.support.entity_operations import EPOCH, attach_exclusive_receiver
from tests.support.raw_client import LinkRefused, connect_raw

if TYPE_CHECKING:
    from tests.support.multi_process_server import MultiProcessServer


async def test_q17_a_silent_client_loses_its_claim_on_fragments_of_all_processes(
    two_workers: MultiProcessServer,
) -> None:
    queues = [two_workers.create_queue(EnablePartitioning=text) for text in ("true", "false", "false")]
    async with connect_raw(two_workers) as silent, connect_raw(two_workers) as other:
        for queue in queues:
            await claim_until_silent(silent, queue, 7)
        for queue in queues:
            assert await claim_when_free(other, queue, 3) < 10


async def test_q17_a_claim_made_only_if_free_displaces_no_receiver_in_another_process(
    two_workers: MultiProcessServer,
) -> None:
    queues = [two_workers.create_queue() for _ in range(4)]  # in both processes
    async with connect_raw(two_workers) as holder:
        links = [await attach_exclusive_receiver(holder, queue, 7) for queue in queues]
        for _ in range(4):  # connections, usually to both processes
            async with connect_raw(two_workers) as other:
                for queue in queues:
                    with pytest.raises(LinkRefused, match=LOCKED):
                        await other.attach_receiver(queue, properties={EPOCH: 9, IF_FREE: True})
        assert not any(has_ended(holder, link) for link in links)
