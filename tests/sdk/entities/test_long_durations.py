"""Long durations, on a server whose clocks are advanced while connections are open."""

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
    """The real time plus an adjustable offset."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self._offset_s

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._offset_s * 1000)

    def set_forward(self, seconds: float, server: InProcessServer) -> None:
        """Advance both clocks, and make the timers look at them."""
        self._offset_s += seconds
        on_earlier = server.namespace.timers.on_earlier_deadline
        assert on_earlier is not None
        server._loop.call_soon_threadsafe(on_earlier)  # noqa: SLF001  # the timers read the clock again


CLOCK = AdvancedClock()


@pytest.fixture(scope="module")
def advanced_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single_process, "SystemClock", lambda: CLOCK)
        with run_server_in_process(tmp_path_factory.mktemp("later")) as server:
            yield server


@pytest.fixture(scope="module")
def closing_connections(advanced_server: InProcessServer) -> Iterator[list[Future[Any]]]:
    """Connections that are being closed; all must be closed before their server stops."""
    assert advanced_server is not None
    futures: list[Future[Any]] = []
    yield futures
    for future in futures:
        future.result(20)


@pytest.fixture
def buses(
    advanced_server: InProcessServer, closing_connections: list[Future[Any]], loop: AsyncDriver
) -> Iterator[list[Bus]]:
    """The sync client and the aio client, which share one server clock."""
    new_buses = [Bus(SyncDriver(), advanced_server, tls=False), Bus(loop, advanced_server, tls=False)]
    yield new_buses
    closing_connections += [closing for bus in new_buses for closing in bus.close_in_background()]


def test_a_message_id_is_forgotten_after_the_duplicate_detection_window(
    buses: list[Bus], advanced_server: InProcessServer
) -> None:
    """The window starts at the first message, and duplicates do not extend it."""
    queue = advanced_server.create_queue(RequiresDuplicateDetection="true", DuplicateDetectionHistoryTimeWindow="PT1M")
    senders = [bus.sender(queue) for bus in buses]

    def send() -> int:
        for number, sender in enumerate(senders):
            sender.send_messages(ServiceBusMessage("x", message_id=f"of {number}"))
        return advanced_server.message_counts(queue)[0]

    counts = [send(), send()]
    for seconds in (50, 15, 50, 15):
        CLOCK.set_forward(seconds, advanced_server)
        counts += [send()]
    assert counts == [2, 2, 2, 4, 4, 6]


def test_a_shortened_duplicate_detection_window_takes_effect_at_once(
    buses: list[Bus], advanced_server: InProcessServer
) -> None:
    queue = advanced_server.create_queue(RequiresDuplicateDetection="true")
    sender = buses[0].sender(queue)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    CLOCK.set_forward(25, advanced_server)
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert advanced_server.message_counts(queue) == (1, 0)
    buses[1].update_queue(queue, duplicate_detection_history_time_window=dt.timedelta(seconds=20))
    sender.send_messages(ServiceBusMessage("x", message_id="1"))
    assert advanced_server.message_counts(queue) == (2, 0)


def test_an_idle_queue_is_deleted_and_one_with_a_receiver_is_not(
    buses: list[Bus], advanced_server: InProcessServer
) -> None:
    idle, sent_to, received_from = [advanced_server.create_queue(AutoDeleteOnIdle="PT5M") for _ in range(3)]
    unlimited = advanced_server.create_queue()
    senders = [bus.sender(sent_to) for bus in buses]
    receivers = [bus.receiver(received_from) for bus in buses]
    for sender, receiver in zip(senders, receivers, strict=True):
        sender.send_messages(ServiceBusMessage("x"))
        assert receiver.peek_messages() == []
    CLOCK.set_forward(200, advanced_server)
    for sender in senders:
        sender.send_messages(ServiceBusMessage("x"))
    CLOCK.set_forward(110, advanced_server)
    administration = buses[0].administration

    def is_gone(queue: str) -> bool:
        try:
            administration.get_queue(queue)
        except ResourceNotFoundError:
            return True
        return False

    wait_until(lambda: is_gone(idle))
    assert not is_gone(sent_to)
    assert advanced_server.message_counts(sent_to) == (4, 0)
    CLOCK.set_forward(200, advanced_server)
    wait_until(lambda: is_gone(sent_to))
    assert not is_gone(received_from)
    assert not is_gone(unlimited)
    administration.create_queue(sent_to)
    assert advanced_server.message_counts(sent_to) == (0, 0), "it is another queue"


def test_a_deferred_message_whose_lock_expired_is_available_to_other_receivers(
    buses: list[Bus], advanced_server: InProcessServer
) -> None:
    queues = [advanced_server.create_queue() for _ in buses]
    receivers = [bus.receiver(queue) for bus, queue in zip(buses, queues, strict=True)]
    others = [bus.receiver(queue) for bus, queue in zip(buses, queues, strict=True)]
    for bus, queue, receiver in zip(buses, queues, receivers, strict=True):
        bus.sender(queue).send_messages(ServiceBusMessage("x"))
        receiver.defer_message(receive(receiver, 1)[0])
        assert receiver.receive_deferred_messages(1)[0].delivery_count == 0
    CLOCK.set_forward(61, advanced_server)
    for other in others:
        wait_until(lambda other=other: other.peek_messages(sequence_number=1)[0].delivery_count == 1)  # type: ignore[misc]
        [again] = other.receive_deferred_messages(1)
        other.complete_message(again)
        assert other.peek_messages(sequence_number=1) == []


def test_the_time_to_live_of_a_scheduled_message_starts_when_it_is_due(
    buses: list[Bus], advanced_server: InProcessServer
) -> None:
    queue = advanced_server.create_queue(DefaultMessageTimeToLive="PT30S")
    for bus in buses:
        due = dt.datetime.fromtimestamp(CLOCK.wall_ms() / 1000 + 300, dt.UTC)
        bus.sender(queue).schedule_messages(ServiceBusMessage("x"), due)
    CLOCK.set_forward(310, advanced_server)
    for bus in buses:
        receiver = bus.receiver(queue)
        [message] = receive(receiver, 1)
        assert body_of(message) == b"x"
        assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(seconds=30)
        receiver.complete_message(message)
