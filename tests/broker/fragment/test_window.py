"""The read-ahead window: order, what is out, and from where it reads on."""

from __future__ import annotations

from twinbus.broker.fragment.window import Window
from twinbus.broker.store_keys import pack_sequence


def row(sequence: int) -> tuple[bytes, bytes]:
    return bytes(7) + pack_sequence(sequence), b"%d" % sequence


def fill(window: Window, *sequences: int, end: int = 100, out: frozenset[int] = frozenset()) -> None:
    window.is_reading = True
    window.fill([row(sequence) for sequence in sequences], window.next_read, end, out.__contains__)


def ready(window: Window) -> list[int]:
    return [sequence for sequence, _ in window.ready]


def test_what_was_read_is_ready_but_for_what_is_out() -> None:
    window = Window(1)
    fill(window, 2, 3, 5, out=frozenset({3}))
    assert ready(window) == [2, 5]
    assert window.next_read == 6
    assert window.ready_bytes == 2


def test_after_the_last_there_is_nothing_up_to_the_end_of_the_read() -> None:
    window = Window(1)
    fill(window, end=40)
    assert window.next_read == 40
    assert not window.needs_read(40)
    assert window.needs_read(41)


def test_what_was_read_before_a_lower_message_came_back_is_read_again() -> None:
    window = Window(5)
    window.is_reading = True
    window.next_read = 3
    window.fill([row(5)], 5, 100, lambda _: False)
    assert ready(window) == []
    assert window.next_read == 3
    assert window.needs_read(100)


def test_what_comes_back_goes_to_its_place() -> None:
    window = Window(1)
    fill(window, 1, 2, 3, 4, 5)
    assert [sequence for sequence, _ in window.take(4)] == [1, 2, 3, 4]
    for sequence in (3, 1, 4, 2):
        window.requeue(sequence, b"x")
    assert ready(window) == [1, 2, 3, 4, 5]
    assert window.ready_bytes == 5


def test_what_was_just_stored_is_taken_only_next_to_what_was_read() -> None:
    window = Window(1)
    window.extend([(1, b"x"), (2, b"x")], 2)
    window.extend([(4, b"x")], 1)
    assert ready(window) == [1, 2]
    assert window.next_read == 3


def test_cleared_it_reads_on_from_its_lowest() -> None:
    window = Window(1)
    fill(window, 2, 3)
    assert window.lowest_available == 2
    window.clear()
    assert (window.next_read, window.lowest_available, window.ready_bytes) == (2, 2, 0)
