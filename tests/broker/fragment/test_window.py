"""The read-ahead window: order, messages in flight, and the position of the next read."""

from __future__ import annotations

from twinbus.broker.fragment.window import Window
from twinbus.broker.store_keys import pack_sequence


def row(sequence: int) -> tuple[bytes, bytes]:
    return bytes(7) + pack_sequence(sequence), b"%d" % sequence


def fill(window: Window, *sequences: int, end: int = 100, in_flight: frozenset[int] = frozenset()) -> None:
    window.is_reading = True
    window.fill([row(sequence) for sequence in sequences], window.next_read, end, in_flight.__contains__)


def ready_sequences(window: Window) -> list[int]:
    return [sequence for sequence, _ in window.ready]


def test_messages_that_were_read_are_ready_unless_in_flight() -> None:
    window = Window(1)
    fill(window, 2, 3, 5, in_flight=frozenset({3}))
    assert ready_sequences(window) == [2, 5]
    assert window.next_read == 6
    assert window.ready_bytes == 2


def test_an_empty_read_moves_the_position_to_its_end() -> None:
    window = Window(1)
    fill(window, end=40)
    assert window.next_read == 40
    assert not window.needs_read(40)
    assert window.needs_read(41)


def test_a_read_is_repeated_if_a_lower_message_came_back_meanwhile() -> None:
    window = Window(5)
    window.is_reading = True
    window.next_read = 3
    window.fill([row(5)], 5, 100, lambda _: False)
    assert ready_sequences(window) == []
    assert window.next_read == 3
    assert window.needs_read(100)


def test_requeued_messages_keep_their_order() -> None:
    window = Window(1)
    fill(window, 1, 2, 3, 4, 5)
    assert [sequence for sequence, _ in window.take(4)] == [1, 2, 3, 4]
    for sequence in (3, 1, 4, 2):
        window.requeue(sequence, b"x")
    assert ready_sequences(window) == [1, 2, 3, 4, 5]
    assert window.ready_bytes == 5


def test_new_messages_extend_the_window_only_without_a_gap() -> None:
    window = Window(1)
    window.extend([(1, b"x"), (2, b"x")], 2)
    window.extend([(4, b"x")], 1)
    assert ready_sequences(window) == [1, 2]
    assert window.next_read == 3


def test_a_cleared_window_reads_from_its_lowest_message() -> None:
    window = Window(1)
    fill(window, 2, 3)
    assert window.lowest_available == 2
    window.clear()
    assert (window.next_read, window.lowest_available, window.ready_bytes) == (2, 2, 0)
