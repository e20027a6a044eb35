"""Within a session what was spooled first goes first; everything else may go at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.client.pairing.spool.index import PositionQueue, SpoolIndex

SESSIONS = st.lists(st.sampled_from("abc"), max_size=3, unique=True)


def add(index: SpoolIndex, position: int, *sessions: str, path: str = "orders") -> None:
    index.add(position, path, sessions, messages=1, spooled_at_ms=position * 1000)


def test_what_has_no_session_goes_in_order_without_waiting() -> None:
    index = SpoolIndex()
    for position in (1, 2, 3):
        add(index, position)
    (pile,) = index.entity_queues.values()
    assert [pile.take() for _ in range(4)] == [1, 2, 3, None]


def test_a_message_of_a_session_waits_until_the_one_before_it_has_gone() -> None:
    index = SpoolIndex()
    add(index, 1, "a")
    add(index, 2, "a")
    add(index, 3, "b")
    (pile,) = index.entity_queues.values()
    assert [pile.take() for _ in range(3)] == [1, 3, None]
    pile.put_back(1)
    assert [pile.take() for _ in range(2)] == [1, None]
    index.remove(1, "orders", ["a"], messages=1)
    assert [pile.take() for _ in range(2)] == [2, None]


def test_a_batch_of_several_sessions_goes_when_it_is_first_in_each() -> None:
    index = SpoolIndex()
    add(index, 1, "a")
    add(index, 2, "b")
    add(index, 3, "a", "b")
    add(index, 4, "b")
    (pile,) = index.entity_queues.values()
    assert [pile.take() for _ in range(3)] == [1, 2, None]
    index.remove(1, "orders", ["a"], messages=1)
    assert pile.take() is None
    index.remove(2, "orders", ["b"], messages=1)
    assert [pile.take() for _ in range(2)] == [3, None]
    index.remove(3, "orders", ["a", "b"], messages=1)
    assert pile.take() == 4


def test_an_entity_holds_a_session_however_its_path_is_spelled_until_the_last_has_gone() -> None:
    index = SpoolIndex()
    add(index, 1, "a", path="Orders")
    assert index.holds_sessions("orders", ["a"])
    assert not index.holds_sessions("orders", ["b"])
    assert not index.holds_sessions("invoices", ["a"])
    (pile,) = index.entity_queues.values()
    pile.take()
    assert index.holds_sessions("ORDERS", ["b", "a"]), "it is on its way, and has not arrived"
    index.remove(1, "orders", ["a"], messages=1)
    assert not index.holds_sessions("orders", ["a"])
    assert not index.entity_queues


@given(records=st.lists(SESSIONS, max_size=12), choices=st.data())
@settings(deadline=None)
def test_in_any_order_of_answers_no_session_is_overtaken_and_all_go(
    records: list[list[str]], choices: st.DataObject
) -> None:
    index = SpoolIndex()
    for position, sessions in enumerate(records):
        add(index, position, *sessions)
    pile = index.entity_queues.get("orders")
    on_way: list[int] = []
    arrived: list[int] = []
    while pile:
        while (taken := pile.take()) is not None:
            assert not any(set(records[taken]) & set(records[other]) for other in on_way)
            on_way.append(taken)
        position = on_way.pop(choices.draw(st.integers(0, len(on_way) - 1)))
        if choices.draw(st.booleans()):
            pile.put_back(position)
        else:
            index.remove(position, "orders", records[position], messages=1)
            arrived.append(position)
            left = sorted(set(range(len(records))) - set(arrived))
            assert index.oldest_ms == (left[0] * 1000 if left else None)
    assert sorted(arrived) == list(range(len(records)))
    for session in "abc":
        of_session = [position for position in arrived if session in records[position]]
        assert of_session == sorted(of_session)
    assert (index.messages, index.entity_queues) == (0, {})


def test_a_long_line_gives_back_the_memory_of_those_that_have_gone() -> None:
    line = PositionQueue()
    for number in range(10_000):
        line.append(number)
    assert [line.pop() for _ in range(9_990)] == list(range(9_990))
    assert (len(line), line.first) == (10, 9_990)
    assert len(line._positions) < 2_048  # noqa: SLF001  # what it is about
