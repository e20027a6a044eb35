"""Messages that arrive in one read for a partitioned queue: their fragments, their order and their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.consumers import FakeSessionConsumer
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.amqp.message import Message, data
from twinbus.amqp.outcomes import Accepted, Rejected
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityDisabled, StoreUnavailable
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE, POSSIBLE_DUPLICATE
from twinbus.model.queue import QueueDescription
from twinbus.server.amqp.incoming_link import PartitionedIncomingLink

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery


class FakeDelivery:
    """An incoming delivery with a payload."""

    state = None

    def __init__(self, payload: bytes, message_format: int = 0) -> None:
        self.payload = payload
        self.message_format = message_format


class FakeLink:
    """A link that records each settlement frame."""

    unanswered_count = 0

    def __init__(self) -> None:
        self.frames: list[tuple[list[FakeDelivery], object]] = []

    def accept(self, **_options: object) -> None:
        """Ignore the attach."""

    def keep_credit(self, credit: int) -> None:
        assert credit

    def settle(self, deliveries: list[FakeDelivery], state: object) -> None:
        self.frames.append((deliveries, state))


class Sender:
    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.end = FakeLink()
        nothing: Any = None
        link: Any = self.end
        self.link = PartitionedIncomingLink(link, harness.namespace, harness.queue, nothing)
        self.deliveries: list[FakeDelivery] = []

    def read(self, *deliveries: FakeDelivery) -> None:
        """Pass the deliveries to the link as one read."""
        untyped: Any = list(deliveries)
        received: list[IncomingDelivery] = untyped
        self.deliveries += deliveries
        self.link.on_deliveries(received)

    def outcomes(self) -> list[object]:
        """Return the outcome of each delivery, in order; each must have exactly one."""
        settled = [(delivery, state) for deliveries, state in self.end.frames for delivery in deliveries]
        assert sorted(map(id, self.deliveries)) == sorted(id(delivery) for delivery, _ in settled)
        states = {id(delivery): state for delivery, state in settled}
        return [states[id(delivery)] for delivery in self.deliveries]


def are_accepted(sender: Sender) -> list[bool]:
    return [isinstance(state, Accepted) for state in sender.outcomes()]


def conditions(sender: Sender) -> list[str | None]:
    return [
        str(state.error.condition) if isinstance(state, Rejected) and state.error is not None else None
        for state in sender.outcomes()
    ]


def test_r099_messages_without_a_key_are_spread_evenly_and_settled_once_per_fragment() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    sender.read(*[FakeDelivery(message()) for _ in range(10 * FRAGMENT_COUNT)])
    harness.run_until_idle()
    assert all(are_accepted(sender))
    assert harness.counts_by_fragment() == [10] * FRAGMENT_COUNT
    assert len(sender.end.frames) == FRAGMENT_COUNT
    positions = {id(delivery): position for position, delivery in enumerate(sender.deliveries)}
    for deliveries, _ in sender.end.frames:
        numbers = [positions[id(delivery)] for delivery in deliveries]
        assert numbers == list(range(numbers[0], numbers[0] + 10))


def test_r099_single_messages_go_to_the_fragments_in_turn() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    for _ in range(2 * FRAGMENT_COUNT):
        sender.read(FakeDelivery(message()))
        harness.run_until_idle()
    assert harness.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_r113_a_batch_with_several_sessions_does_not_overtake_earlier_messages() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, requires_session=True))
    sender = Sender(harness)
    session, other_session = key_for_fragment(2), key_for_fragment(3)
    batch = data(message(b"2", session=session), message(b"-", session=other_session))
    sender.read(
        FakeDelivery(message(b"1", session=session)),
        FakeDelivery(batch, BATCH_FORMAT),
        FakeDelivery(message(b"3", session=session)),
    )
    harness.run_until_idle()
    assert all(are_accepted(sender))
    consumer = FakeSessionConsumer(harness.main_fragments[2], session=session.encode())
    consumer.grant(10)
    harness.run_until_idle()
    assert consumer.bodies == [b"1", b"2", b"3"]


def test_r100_r101_if_a_store_fails_messages_with_a_key_fail_and_others_are_rerouted() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    harness.fail_next_sync(0)
    keys = [key_for_fragment(number) if number % 2 else None for number in range(FRAGMENT_COUNT)]
    keys += [key_for_fragment(0), key_for_fragment(4)]
    sender.read(*[FakeDelivery(message(key=key)) for key in keys])
    harness.run_until_idle()
    assert are_accepted(sender) == [True] * FRAGMENT_COUNT + [False, False]
    assert conditions(sender)[-2:] == [str(StoreUnavailable.condition)] * 2


def test_q04_r100_rerouted_messages_are_marked_as_possible_duplicates() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    harness.fail_next_sync(0)
    sender.read(*[FakeDelivery(message(b"%d" % number)) for number in range(FRAGMENT_COUNT)])
    harness.run_until_idle()
    assert all(are_accepted(sender))
    received = [Message(payload) for payload, _ in harness.consumer(100).deliveries]
    marked = [item for item in received if dict(item.application_properties).get(POSSIBLE_DUPLICATE) is True]
    assert len(marked) == FRAGMENT_COUNT // STORES
    assert len({item.data[0] for item in received}) == FRAGMENT_COUNT


def test_r100_messages_of_a_store_that_hangs_are_settled_once_after_its_timeout() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    harness.stores[1].hang()
    sender.read(*[FakeDelivery(message()) for _ in range(FRAGMENT_COUNT)])
    harness.run_until_idle()
    assert sum(len(deliveries) for deliveries, _ in sender.end.frames) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    harness.advance(10.1)
    assert all(are_accepted(sender))
    harness.stores[1].resume()
    harness.run_until_idle()
    assert all(are_accepted(sender))


def test_if_all_stores_fail_all_messages_are_rejected() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    for store in range(STORES):
        harness.fail_next_sync(store)
    sender.read(*[FakeDelivery(message(key=key)) for key in (None, None, key_for_fragment(1), None)])
    harness.run_until_idle()
    assert set(conditions(sender)) == {str(StoreUnavailable.condition)}


def test_if_the_queue_is_disabled_while_stores_fail_all_messages_are_rejected() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    for store in range(STORES):
        harness.fail_next_sync(store)
    sender.read(*[FakeDelivery(message()) for _ in range(FRAGMENT_COUNT)])
    harness.queue.links.clear()
    harness.queue.set_status("SendDisabled")
    harness.run_until_idle()
    assert set(conditions(sender)) == {str(EntityDisabled.condition)}


@pytest.mark.parametrize("invalid", [b"no message", message(key="k", session="s")])
def test_an_invalid_message_is_rejected_alone(invalid: bytes) -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    sender.read(
        FakeDelivery(message(b"1")), FakeDelivery(invalid), FakeDelivery(message(b"2")), FakeDelivery(message(key="k"))
    )
    harness.run_until_idle()
    assert are_accepted(sender) == [True, False, True, True]
    assert sum(harness.counts_by_fragment()) == 3


def test_pings_and_messages_in_one_read_are_all_accepted_and_only_messages_stored() -> None:
    harness = BrokerHarness(PARTITIONED)
    sender = Sender(harness)
    ping = message(content_type=PING_CONTENT_TYPE)
    keyed = message(content_type=PING_CONTENT_TYPE, key=key_for_fragment(5))
    pings = data(keyed, message(content_type=PING_CONTENT_TYPE, key=key_for_fragment(6)))
    sender.read(
        FakeDelivery(message()),
        FakeDelivery(ping),
        FakeDelivery(keyed),
        FakeDelivery(pings, BATCH_FORMAT),
        FakeDelivery(message(key=key_for_fragment(5))),
    )
    harness.run_until_idle()
    assert all(are_accepted(sender))
    assert sum(harness.counts_by_fragment()) == 2


def test_duplicates_in_one_read_are_stored_once_with_duplicate_detection() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    sender = Sender(harness)
    sender.read(*[FakeDelivery(message(message_id=f"{number % 7}")) for number in range(21)])
    harness.run_until_idle()
    assert all(are_accepted(sender))
    assert sum(harness.counts_by_fragment()) == 7


def test_r113_messages_keep_their_order_behind_a_batch_while_its_size_is_checked() -> None:
    harness, near, far = BrokerHarness(PARTITIONED, processes=2), key_for_fragment(0), key_for_fragment(1)
    sender, queue = Sender(harness), harness.queue
    harness.silent_processes.add(1)
    batch = data(message(b"first", key=near), message(b"first", key=far))
    sender.read(FakeDelivery(batch, BATCH_FORMAT))
    sender.read(FakeDelivery(message(b"second", key=near)), FakeDelivery(message(b"x" * 5_000, key=near)))
    sender.read(FakeDelivery(message(b"third", key=near)))
    queue.parts[0].main.local.message_table.active_bytes = 2**30 - 1_000  # room for all messages except the large one
    harness.end_silence()
    assert are_accepted(sender) == [True, True, False, True]
    peeked: list[Any] = []
    queue.parts[0].main.browser.peek(0, 100, 100_000, peeked.append)
    harness.run_until_idle()
    assert [b"".join(Message(payload).data) for payload in peeked[0]] == [b"first", b"second", b"third"]
