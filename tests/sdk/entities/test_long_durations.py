"""What takes longer than a test may wait, on a server whose clocks are set forward under open connections."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import AsyncDriver, Bus, SyncDriver, body_of, receive
from tests.support.in_process_server import run_server_in_process
from tests.support.server_process import wait_until
from twinbus.server.runtime import single_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.support.in_process_server import InProcessServer


class AdvancedClock:
    """The real time, and some."""

    def __init__(self) -> None:
        self._more_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self._more_s

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._more_s * 1000)

    def set_forward(self, seconds: float, server: InProcessServer) -> None:
        """On both clocks; what is due by then is done."""
        self._more_s += seconds
        on_earlier = server.namespace.timers.on_earlier_deadline
        assert on_earlier is not None
        server._loop.call_soon_threadsafe(on_earlier)  # noqa: SLF001  # the timers look at the clock again


CLOCK = AdvancedClock()


@pytest.fixture(scope="module")
def later_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single_process, "SystemClock", lambda: CLOCK)
        with run_server_in_process(tmp_path_factory.mktemp("later")) as server:
            yield server


@pytest.fixture(scope="module")
def ends(later_server: InProcessServer) -> Iterator[list[Future[Any]]]:
    """Connections that are being closed; all are before their server stops."""
    assert later_server is not None
    futures: list[Future[Any]] = []
    yield futures
    for future in futures:
        future.result(20)


@pytest.fixture
def both(later_server: InProcessServer, ends: list[Future[Any]], loop: AsyncDriver) -> Iterator[list[Bus]]:
    """The sync client and the aio client: time passes for both at once."""
    buses = [Bus(SyncDriver(), later_server, tls=False), Bus(loop, later_server, tls=False)]
    yield buses
    ends += [closing for bus in buses for closing in bus.close_in_background()]


def test_the_id_of_a_message_is_forgotten_after_the_window(both: list[Bus], later_server: InProcessServer) -> None:
    """It is counted from the first message, however often that is sent again."""
    queue = later_server.create_queue(RequiresDuplicateDetection="true", DuplicateDetectionHistoryTimeWindow="PT1M")
    senders = [bus.sender(queue) for bus in both]

    def send() -> int:
        for number, sender in enumerate(senders):
            sender.send_messages(ServiceBusMessage("x", message_id=f"of {number}"))
        return later_server.message_counts(queue)[0]

    counts = [send(), send()]
    for seconds in (50, 15, 50, 15):
        CLOCK.set_forward(seconds, later_server)
        counts += [send()]
    assert counts == [2, 2, 2, 4, 4, 6]


def test_a_window_that_is_made_shorter_holds_at_once(both: list[Bus], later_server: InProcessServer) -> None:
    queue = later_server.create_queue(RequiresDuplicateDetection="true")
    sender = both[0].sender(queue)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    CLOCK.set_forward(25, later_server)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert later_server.message_counts(queue) == (1, 0)
    both[1].update_queue(queue, duplicate_detection_history_time_window=dt.timedelta(seconds=20))
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert later_server.message_counts(queue) == (2, 0)


def test_a_queue_that_nobody_uses_is_deleted_and_one_that_is_received_from_is_not(
    both: list[Bus], later_server: InProcessServer
) -> None:
    idle, sent_to, received_from = [later_server.create_queue(AutoDeleteOnIdle="PT5M") for _ in range(3)]
    unlimited = later_server.create_queue()
    senders = [bus.sender(sent_to) for bus in both]
    receivers = [bus.receiver(received_from) for bus in both]
    for sender, receiver in zip(senders, receivers, strict=True):
        sender.send_messages(ServiceBusMessage("x"))
        assert receiver.peek_messages() == []
    CLOCK.set_forward(200, later_server)
    for sender in senders:
        sender.send_messages(ServiceBusMessage("x"))
    CLOCK.set_forward(110, later_server)
    administration = both[0].administration

    def is_gone(queue: str) -> bool:
        try:
            administration.get_queue(queue)
        except ResourceNotFoundError:
            return True
        return False

    wait_until(lambda: is_gone(idle))
    assert not is_gone(sent_to)
    assert later_server.message_counts(sent_to) == (4, 0)
    CLOCK.set_forward(200, later_server)
    wait_until(lambda: is_gone(sent_to))
    assert not is_gone(received_from)
    assert not is_gone(unlimited)
    administration.create_queue(sent_to)
    assert later_server.message_counts(sent_to) == (0, 0), "it is another queue"


def test_a_deferred_message_whose_lock_is_over_is_there_for_others(
    both: list[Bus], later_server: InProcessServer
) -> None:
    queues = [later_server.create_queue() for _ in both]
    receivers = [bus.receiver(queue) for bus, queue in zip(both, queues, strict=True)]
    others = [bus.receiver(queue) for bus, queue in zip(both, queues, strict=True)]
    for bus, queue, receiver in zip(both, queues, receivers, strict=True):
        bus.sender(queue).send_messages(ServiceBusMessage("x"))
        receiver.defer_message(receive(receiver, 1)[0])
        assert receiver.receive_deferred_messages(1)[0].delivery_count == 0
    CLOCK.set_forward(61, later_server)
    for other in others:
        wait_until(lambda other=other: other.peek_messages(sequence_number=1)[0].delivery_count == 1)  # type: ignore[misc]
        [again] = other.receive_deferred_messages(1)
        other.complete_message(again)
        assert other.peek_messages(sequence_number=1) == []


def test_the_life_of_a_scheduled_message_begins_when_it_is_due(both: list[Bus], later_server: InProcessServer) -> None:
    queue = later_server.create_queue(DefaultMessageTimeToLive="PT30S")
    for bus in both:
        due = dt.datetime.fromtimestamp(CLOCK.wall_ms() / 1000 + 300, dt.UTC)
        bus.sender(queue).schedule_messages(ServiceBusMessage("x"), due)
    CLOCK.set_forward(310, later_server)
    for bus in both:
        receiver = bus.receiver(queue)
        [message] = receive(receiver, 1)
        assert body_of(message) == b"x"
        assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(seconds=30)
        receiver.complete_message(message)
