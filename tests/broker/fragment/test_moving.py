"""A moved message is in exactly one place, whenever a store fails or the power is cut."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.fragment.test_forwarding import TwoStoreHarness, bodies
from tests.support.parts import local_part
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue

COUNT = 6


class MovingHarness(TwoStoreHarness):
    """A queue with messages, and a destination in another store."""

    def __init__(self) -> None:
        super().__init__()
        self.target: Queue = self.add("target")
        for number in range(COUNT):
            self.send(b"%d" % number, to=self.queue, ttl=3_600_000 if number % 2 else None)
        self.run_until_idle()

    def move(self, *sequences: int) -> Results:
        results = Results()
        self.queue.parts[0].move(SubQueue.MAIN, list(sequences), "target", self.namespace.intake, results)
        return results

    def all_bodies(self) -> list[bytes]:
        return sorted([*bodies(self, self.queue), *bodies(self, self.target)])


def test_messages_move_in_the_order_of_the_request_and_leave_nothing_behind() -> None:
    harness = MovingHarness()
    results = harness.move(4, 2, 1)
    harness.run_until_idle()
    assert results == [None]
    assert bodies(harness, harness.target) == [b"3", b"1", b"0"]
    assert bodies(harness, harness.queue) == [b"2", b"4", b"5"]
    part = local_part(harness.queue)
    assert part.transfers is not None
    assert part.transfers.message_table.size == 0


@pytest.mark.parametrize("store", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("seed", range(16))
def test_a_store_that_fails_during_a_move_loses_and_duplicates_nothing(store: int, seed: int) -> None:
    harness, chance = MovingHarness(), Random(seed)
    harness.move(1, 2, 3, 4)
    for _ in range(chance.randrange(25)):
        harness.step_randomly(chance)
    harness.crash_store(store)
    harness.recover()
    harness.advance(6)
    assert harness.all_bodies() == [b"%d" % number for number in range(COUNT)]


def test_a_message_that_cannot_be_moved_is_delivered_as_before() -> None:
    harness = MovingHarness()
    results = harness.move(1, 2, 99)
    harness.run_until_idle()
    assert [str(result) for result in results] == [
        "message 99 does not exist, is not active, or a receiver has locked it"
    ]
    assert bodies(harness, harness.queue) == [b"%d" % number for number in range(COUNT)]
