"""Spooled messages of a session are sent in order; all other messages can be sent at the same time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.client.pairing.spool.index import PositionQueue, SpoolIndex

SESSIONS = st.lists(st.sampled_from("abc"), max_size=3, unique=True)


def add(index: SpoolIndex, position: int, *sessions: str, path: str = "orders") -> None:
    index.add(position, path, sessions, messages=1, spooled_at_ms=position * 1000)


def test_messages_without_a_session_are_taken_in_order_without_waiting() -> None:
    index = SpoolIndex()
    for position in (1, 2, 3):
        add(index, position)
    (queue,) = index.entity_queues.values()
    assert [queue.take() for _ in range(4)] == [1, 2, 3, None]


def test_a_message_of_a_session_waits_until_the_previous_one_is_removed() -> None:
    index = SpoolIndex()
    add(index, 1, "a")
    add(index, 2, "a")
    add(index, 3, "b")
    (queue,) = index.entity_queues.values()
    assert [queue.take() for _ in range(3)] == [1, 3, None]
    queue.put_back(1)
    assert [queue.take() for _ in range(2)] == [1, None]
    index.remove(1, "orders", ["a"], messages=1)
    assert [queue.take() for _ in range(2)] == [2, None]


def test_a_batch_of_several_sessions_is_taken_when_it_is_first_in_each() -> None:
    index = SpoolIndex()
    add(index, 1, "a")
    add(index, 2, "b")
    add(index, 3, "a", "b")
    add(index, 4, "b")
    (queue,) = index.entity_queues.values()
    assert [queue.take() for _ in range(3)] == [1, 2, None]
    index.remove(1, "orders", ["a"], messages=1)
    assert queue.take() is None
    index.remove(2, "orders", ["b"], messages=1)
    assert [queue.take() for _ in range(2)] == [3, None]
    index.remove(3, "orders", ["a", "b"], messages=1)
    assert queue.take() == 4


def test_a_session_is_held_until_its_last_message_is_removed_in_any_case_of_the_path() -> None:
    index = SpoolIndex()
    add(index, 1, "a", path="Orders")
    assert index.holds_sessions("orders", ["a"])
    assert not index.holds_sessions("orders", ["b"])
    assert not index.holds_sessions("invoices", ["a"])
    (queue,) = index.entity_queues.values()
    queue.take()
    assert index.holds_sessions("ORDERS", ["b", "a"]), "the message is in flight, and has not arrived"
    index.remove(1, "orders", ["a"], messages=1)
    assert not index.holds_sessions("orders", ["a"])
    assert not index.entity_queues


@given(records=st.lists(SESSIONS, max_size=12), choices=st.data())
@settings(deadline=None)
def test_in_any_order_of_responses_all_messages_are_sent_and_sessions_keep_their_order(
    records: list[list[str]], choices: st.DataObject
) -> None:
    index = SpoolIndex()
    for position, sessions in enumerate(records):
        add(index, position, *sessions)
    queue = index.entity_queues.get("orders")
    in_flight: list[int] = []
    arrived: list[int] = []
    while queue:
        while (taken := queue.take()) is not None:
            assert not any(set(records[taken]) & set(records[other]) for other in in_flight)
            in_flight.append(taken)
        position = in_flight.pop(choices.draw(st.integers(0, len(in_flight) - 1)))
        if choices.draw(st.booleans()):
            queue.put_back(position)
        else:
            index.remove(position, "orders", records[position], messages=1)
            arrived.append(position)
            remaining = sorted(set(range(len(records))) - set(arrived))
            assert index.oldest_ms == (remaining[0] * 1000 if remaining else None)
    assert sorted(arrived) == list(range(len(records)))
    for session in "abc":
        of_session = [position for position in arrived if session in records[position]]
        assert of_session == sorted(of_session)
    assert (index.messages, index.entity_queues) == (0, {})


def test_a_long_queue_frees_the_memory_of_removed_positions() -> None:
    positions = PositionQueue()
    for number in range(10_000):
        positions.append(number)
    assert [positions.pop() for _ in range(9_990)] == list(range(9_990))
    assert (len(positions), positions.first) == (10, 9_990)
    assert len(positions._positions) < 2_048  # noqa: SLF001  # the memory that is freed
