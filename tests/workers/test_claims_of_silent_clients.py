"""A claim of a silent client is freed in all processes that have fragments, whichever the client is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plain.raw import raw
from tests.plain.test_limits_of_silence import claim_until_silent, claim_when_free

if TYPE_CHECKING:
    from tests.workers.crew import Crew


async def test_q17_a_silent_client_loses_its_claim_on_fragments_of_all_processes(two_workers: Crew) -> None:
    queues = [two_workers.make_queue(EnablePartitioning=text) for text in ("true", "false", "false")]
    async with raw(two_workers) as silent, raw(two_workers) as other:
        for queue in queues:
            await claim_until_silent(silent, queue, 7)
        for queue in queues:
            assert await claim_when_free(other, queue, 3) < 10
