"""Messages of one read on a link to a partitioned queue: where they go, in which order, and how they are answered."""

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
    """A message as it came in."""

    state = None

    def __init__(self, payload: bytes, message_format: int = 0) -> None:
        self.payload = payload
        self.message_format = message_format


class FakeLink:
    """Writes down what is answered, frame by frame."""

    unanswered_count = 0

    def __init__(self) -> None:
        self.frames: list[tuple[list[FakeDelivery], object]] = []

    def accept(self, **_said: object) -> None:
        """It is attached."""

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
        """They come in one read."""
        some: Any = list(deliveries)
        received: list[IncomingDelivery] = some
        self.deliveries += deliveries
        self.link.on_deliveries(received)

    def outcomes(self) -> list[object]:
        """What was said of each, which is once."""
        told = [(delivery, state) for deliveries, state in self.end.frames for delivery in deliveries]
        assert sorted(map(id, self.deliveries)) == sorted(id(delivery) for delivery, _ in told)
        states = {id(delivery): state for delivery, state in told}
        return [states[id(delivery)] for delivery in self.deliveries]


def are_accepted(sender: Sender) -> list[bool]:
    return [isinstance(state, Accepted) for state in sender.outcomes()]


def conditions(sender: Sender) -> list[str | None]:
    return [
        str(state.error.condition) if isinstance(state, Rejected) and state.error is not None else None
        for state in sender.outcomes()
    ]


def test_r099_those_without_a_key_are_shared_out_evenly_and_neighbours_are_answered_in_one_frame() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    sender.read(*[FakeDelivery(message()) for _ in range(10 * FRAGMENT_COUNT)])
    rig.run_until_idle()
    assert all(are_accepted(sender))
    assert rig.counts_by_fragment() == [10] * FRAGMENT_COUNT
    assert len(sender.end.frames) == FRAGMENT_COUNT
    places = {id(delivery): place for place, delivery in enumerate(sender.deliveries)}
    for deliveries, _ in sender.end.frames:
        numbers = [places[id(delivery)] for delivery in deliveries]
        assert numbers == list(range(numbers[0], numbers[0] + 10))


def test_r099_one_after_the_other_they_go_to_each_in_turn() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    for _ in range(2 * FRAGMENT_COUNT):
        sender.read(FakeDelivery(message()))
        rig.run_until_idle()
    assert rig.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_r113_a_batch_of_several_sessions_does_not_overtake_what_came_before_it_in_the_same_read() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, requires_session=True))
    sender = Sender(rig)
    one, other = key_for_fragment(2), key_for_fragment(3)
    batch = data(message(b"2", session=one), message(b"-", session=other))
    sender.read(
        FakeDelivery(message(b"1", session=one)),
        FakeDelivery(batch, BATCH_FORMAT),
        FakeDelivery(message(b"3", session=one)),
    )
    rig.run_until_idle()
    assert all(are_accepted(sender))
    consumer = FakeSessionConsumer(rig.main_fragments[2], session=one.encode())
    consumer.grant(10)
    rig.run_until_idle()
    assert consumer.bodies == [b"1", b"2", b"3"]


def test_r100_r101_where_a_store_fails_with_them_those_with_a_key_fail_and_the_others_go_elsewhere() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    rig.fail_next_sync(0)
    keys = [key_for_fragment(number) if number % 2 else None for number in range(FRAGMENT_COUNT)]
    keys += [key_for_fragment(0), key_for_fragment(4)]
    sender.read(*[FakeDelivery(message(key=key)) for key in keys])
    rig.run_until_idle()
    assert are_accepted(sender) == [True] * FRAGMENT_COUNT + [False, False]
    assert conditions(sender)[-2:] == [str(StoreUnavailable.condition)] * 2


def test_q04_r100_those_that_a_failed_store_may_have_kept_are_marked_where_they_go() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    rig.fail_next_sync(0)
    sender.read(*[FakeDelivery(message(b"%d" % number)) for number in range(FRAGMENT_COUNT)])
    rig.run_until_idle()
    assert all(are_accepted(sender))
    found = [Message(payload) for payload, _ in rig.consumer(100).deliveries]
    marked = [one for one in found if dict(one.application_properties).get(POSSIBLE_DUPLICATE) is True]
    assert len(marked) == FRAGMENT_COUNT // STORES
    assert len({one.data[0] for one in found}) == FRAGMENT_COUNT


def test_r100_where_a_store_hangs_with_them_they_are_answered_once_and_soon_after_it_is_given_up() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    rig.stores[1].hang()
    sender.read(*[FakeDelivery(message()) for _ in range(FRAGMENT_COUNT)])
    rig.run_until_idle()
    assert sum(len(deliveries) for deliveries, _ in sender.end.frames) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    rig.advance(10.1)
    assert all(are_accepted(sender))
    rig.stores[1].resume()
    rig.run_until_idle()
    assert all(are_accepted(sender))


def test_where_all_stores_fail_all_are_told() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    for store in range(STORES):
        rig.fail_next_sync(store)
    sender.read(*[FakeDelivery(message(key=key)) for key in (None, None, key_for_fragment(1), None)])
    rig.run_until_idle()
    assert set(conditions(sender)) == {str(StoreUnavailable.condition)}


def test_where_it_is_disabled_while_a_store_fails_with_them_all_are_told() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    for store in range(STORES):
        rig.fail_next_sync(store)
    sender.read(*[FakeDelivery(message()) for _ in range(FRAGMENT_COUNT)])
    rig.queue.links.clear()
    rig.queue.set_status("SendDisabled")
    rig.run_until_idle()
    assert set(conditions(sender)) == {str(EntityDisabled.condition)}


@pytest.mark.parametrize("wrong", [b"no message", message(key="k", session="s")])
def test_what_is_wrong_is_refused_for_itself(wrong: bytes) -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
    sender.read(
        FakeDelivery(message(b"1")), FakeDelivery(wrong), FakeDelivery(message(b"2")), FakeDelivery(message(key="k"))
    )
    rig.run_until_idle()
    assert are_accepted(sender) == [True, False, True, True]
    assert sum(rig.counts_by_fragment()) == 3


def test_pings_and_messages_in_one_read_are_all_answered_and_only_messages_are_stored() -> None:
    rig = BrokerHarness(PARTITIONED)
    sender = Sender(rig)
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
    rig.run_until_idle()
    assert all(are_accepted(sender))
    assert sum(rig.counts_by_fragment()) == 2


def test_with_duplicates_detected_copies_in_one_read_are_stored_once() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    sender = Sender(rig)
    sender.read(*[FakeDelivery(message(message_id=f"{number % 7}")) for number in range(21)])
    rig.run_until_idle()
    assert all(are_accepted(sender))
    assert sum(rig.counts_by_fragment()) == 7


def test_r113_messages_that_fit_one_by_one_keep_their_order_behind_a_batch_that_is_checked() -> None:
    rig, near, far = BrokerHarness(PARTITIONED, processes=2), key_for_fragment(0), key_for_fragment(1)
    sender, queue = Sender(rig), rig.queue
    rig.silent_processes.add(1)
    batch = data(message(b"first", key=near), message(b"first", key=far))
    sender.read(FakeDelivery(batch, BATCH_FORMAT))
    sender.read(FakeDelivery(message(b"second", key=near)), FakeDelivery(message(b"x" * 5_000, key=near)))
    sender.read(FakeDelivery(message(b"third", key=near)))
    queue.parts[0].main.local.message_table.active_bytes = 2**30 - 1_000  # there is room for all but the large one
    rig.end_silence()
    assert are_accepted(sender) == [True, True, False, True]
    found: list[Any] = []
    queue.parts[0].main.browser.peek(0, 100, 100_000, found.append)
    rig.run_until_idle()
    assert [b"".join(Message(payload).data) for payload in found[0]] == [b"first", b"second", b"third"]
