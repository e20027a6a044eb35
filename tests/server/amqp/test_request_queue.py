"""The requests of a connection are executed in order, a few per turn, and only while their responses have room."""

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
    """The bytes queued for a client, set by the test."""

    output_bytes = 0
    waiting_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self.output_bytes + self.waiting_bytes


class FakePeer:
    """The state of a client's socket, set by the test."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.is_writable = True
        self.awaits_window = False


class RecordingRequestLink:
    """A request link that records its requests; each response has `weight` bytes, and is released now or later."""

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


class RequestQueueHarness:
    """A request queue with a manual event loop."""

    def __init__(self, link: RecordingRequestLink) -> None:
        self.peer = FakePeer()
        self.soon: list[Callable[[], None]] = []
        self.queue = link.queue = RequestQueue(cast("Peer", self.peer), self.soon.append)
        self.link = link

    def add_requests(self, *numbers: int) -> None:
        self.queue.add(cast("RequestLink", self.link), cast("list[IncomingDelivery]", list(numbers)))

    def turn(self) -> None:
        calls, self.soon[:] = self.soon[:], []
        for call in calls:
            call()


def test_a_turn_executes_only_a_few_requests_of_each_connection() -> None:
    harness = RequestQueueHarness(RecordingRequestLink())
    harness.add_requests(*range(100))
    assert harness.link.numbers == list(range(MAX_REQUESTS_PER_TURN))
    harness.add_requests(*range(100, 110))
    assert len(harness.link.numbers) == MAX_REQUESTS_PER_TURN
    harness.turn()
    assert len(harness.link.numbers) == 2 * MAX_REQUESTS_PER_TURN
    while harness.soon:
        harness.turn()
    assert harness.link.numbers == list(range(110))


def test_no_request_is_executed_while_the_socket_is_not_writable() -> None:
    harness = RequestQueueHarness(RecordingRequestLink())
    harness.peer.is_writable = False
    harness.add_requests(*range(10))
    assert harness.link.numbers == []
    assert harness.soon == []
    harness.peer.is_writable = True
    harness.queue.resume()
    assert harness.link.numbers == list(range(10))


def test_requests_with_large_responses_wait_for_earlier_responses() -> None:
    link = RecordingRequestLink(MAX_RUNNING_RESPONSE_BYTES // 2, later=True)
    harness = RequestQueueHarness(link)
    harness.add_requests(*range(10))
    assert link.numbers == [0, 1]
    assert harness.queue.waiting_count == 8
    harness.queue.release(link.weight)
    assert link.numbers == [0, 1, 2]


def test_a_response_above_the_limit_is_produced_alone() -> None:
    link = RecordingRequestLink(10 * MAX_RUNNING_RESPONSE_BYTES, later=True)
    harness = RequestQueueHarness(link)
    harness.add_requests(1, 2)
    assert link.numbers == [1]
    harness.queue.release(link.weight)
    assert link.numbers == [1, 2]


def test_responses_behind_a_closed_window_are_not_polled_in_every_turn() -> None:
    peer, soon, fed = FakePeer(), list["Callable[[], None]"](), list[int]()
    room = SocketBackpressure(cast("Peer", peer), soon.append, lambda: fed.append(1))
    peer.connection.waiting_bytes = MAX_QUEUED_BYTES + 1
    assert not room.has_room()
    assert soon == []
    assert peer.awaits_window
    peer.connection.output_bytes = 1
    assert not room.has_room()
    assert len(soon) == 1
