"""Requests of a connection are executed in their order, while their answers have room, and a few in each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.server.amqp.request_link import MAX_REQUESTS_PER_TURN, MAX_RUNNING_RESPONSE_BYTES, RequestQueue
from twinbus.server.amqp.socket_backpressure import MAX_QUEUED_BYTES, SocketBackpressure

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.server.amqp.request_link import RequestLink


class FakeConnection:
    """What is queued for a client, as a test wants it."""

    output_bytes = 0
    waiting_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self.output_bytes + self.waiting_bytes


class FakePeer:
    """A client's socket, as a test wants it."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.is_writable = True
        self.awaits_window = False


class Executed:
    """A request link that notes what it executes; each answer has so many bytes, and may come later."""

    def __init__(self, weight: int = 0, *, later: bool = False) -> None:
        self.numbers: list[int] = []
        self.queue: RequestQueue
        self.weight = weight
        self._later = later

    def execute(self, delivery: IncomingDelivery) -> None:
        self.numbers.append(cast("int", delivery))
        self.queue.reserve(self.weight)
        if not self._later:
            self.queue.release(self.weight)


class Rig:
    """A queue, and the turns of a loop."""

    def __init__(self, link: Executed) -> None:
        self.peer = FakePeer()
        self.soon: list[Callable[[], None]] = []
        self.queue = link.queue = RequestQueue(cast("Peer", self.peer), self.soon.append)
        self.link = link

    def ask(self, *numbers: int) -> None:
        self.queue.add(cast("RequestLink", self.link), cast("list[IncomingDelivery]", list(numbers)))

    def turn(self) -> None:
        calls, self.soon[:] = self.soon[:], []
        for call in calls:
            call()


def test_a_turn_has_a_few_requests_of_each_connection() -> None:
    rig = Rig(Executed())
    rig.ask(*range(100))
    assert rig.link.numbers == list(range(MAX_REQUESTS_PER_TURN))
    rig.ask(*range(100, 110))
    assert len(rig.link.numbers) == MAX_REQUESTS_PER_TURN
    rig.turn()
    assert len(rig.link.numbers) == 2 * MAX_REQUESTS_PER_TURN
    while rig.soon:
        rig.turn()
    assert rig.link.numbers == list(range(110))


def test_nothing_is_executed_while_the_socket_takes_no_answers() -> None:
    rig = Rig(Executed())
    rig.peer.is_writable = False
    rig.ask(*range(10))
    assert rig.link.numbers == []
    assert rig.soon == []
    rig.peer.is_writable = True
    rig.queue.resume()
    assert rig.link.numbers == list(range(10))


def test_large_answers_wait_for_those_before_them() -> None:
    link = Executed(MAX_RUNNING_RESPONSE_BYTES // 2, later=True)
    rig = Rig(link)
    rig.ask(*range(10))
    assert link.numbers == [0, 1]
    assert rig.queue.waiting_count == 8
    rig.queue.release(link.weight)
    assert link.numbers == [0, 1, 2]


def test_one_answer_larger_than_all_may_be_is_on_its_way_alone() -> None:
    link = Executed(10 * MAX_RUNNING_RESPONSE_BYTES, later=True)
    rig = Rig(link)
    rig.ask(1, 2)
    assert link.numbers == [1]
    rig.queue.release(link.weight)
    assert link.numbers == [1, 2]


def test_answers_that_wait_for_a_closed_window_are_not_asked_for_in_every_turn() -> None:
    peer, soon, fed = FakePeer(), list["Callable[[], None]"](), list[int]()
    room = SocketBackpressure(cast("Peer", peer), soon.append, lambda: fed.append(1))
    peer.connection.waiting_bytes = MAX_QUEUED_BYTES + 1
    assert not room.has_room()
    assert soon == []
    assert peer.awaits_window
    peer.connection.output_bytes = 1
    assert not room.has_room()
    assert len(soon) == 1
