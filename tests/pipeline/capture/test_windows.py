"""A window of a fragment closes by time or by size, whichever comes first."""

from __future__ import annotations

from twinbus.pipeline.capture.window import INITIAL_MESSAGE_BYTES, DueWindow, Window, WindowLimits

LIMITS = WindowLimits(60.0, 1_000_000)


def window_of_known_size(first: int = 1) -> Window:
    """Return a window whose messages are known to have 1,000 bytes."""
    window = Window(3, first, LIMITS)
    window.mark_closed(100, 100_000)
    return window


def test_a_window_opens_with_its_first_message_and_closes_after_its_duration() -> None:
    window = window_of_known_size()
    assert window.close_if_due(1, 0.0) is None
    assert window.close_if_due(2, 1_000.0) is None
    assert window.close_if_due(11, 1_059.9) is None
    assert window.close_if_due(12, 1_060.0) == DueWindow(3, 1, 11, only_full_files=False)


def test_a_window_closes_when_its_estimated_size_reaches_the_limit() -> None:
    window = window_of_known_size()
    assert window.close_if_due(1_000, 0.0) is None
    assert window.close_if_due(1_001, 1.0) == DueWindow(3, 1, 1_000, only_full_files=True)


def test_a_window_closes_by_the_initial_estimate_if_sizes_are_unknown() -> None:
    window = Window(3, 1, LIMITS)
    enough = 1 + -(-LIMITS.max_bytes // int(INITIAL_MESSAGE_BYTES))
    assert window.close_if_due(enough - 1, 0.0) is None
    assert window.close_if_due(enough, 0.0) is not None


def test_a_window_that_is_being_written_is_not_due() -> None:
    window = window_of_known_size()
    assert window.close_if_due(2, 0.0, force=True) == DueWindow(3, 1, 1, only_full_files=False)
    assert window.close_if_due(3, 1_000.0, force=True) is None
    window.mark_written(1)
    window.mark_closed(1, 1_000)
    assert window.close_if_due(3, 1_000.0, force=True) == DueWindow(3, 2, 2, only_full_files=False)


def test_the_rest_after_full_files_waits_for_its_own_duration() -> None:
    window = window_of_known_size()
    assert window.close_if_due(1_501, 50.0) is not None
    window.mark_written(1_000)
    window.mark_closed(1_500, 1_500_000)
    assert window.close_if_due(1_501, 70.0) is None
    assert window.close_if_due(1_501, 130.0) == DueWindow(3, 1_001, 1_500, only_full_files=False)


def test_a_window_that_closes_at_once_closes_with_its_first_message() -> None:
    window = Window(3, 1, LIMITS, closes_at_once=True)
    assert window.close_if_due(1, 0.0) is None
    assert window.close_if_due(2, 0.0) == DueWindow(3, 1, 1, only_full_files=False)


def test_a_failed_window_is_written_again_at_once() -> None:
    window = window_of_known_size()
    window.close_if_due(2, 0.0)
    assert window.close_if_due(2, 60.0) is not None
    window.mark_closed()
    assert window.close_if_due(5, 61.0) == DueWindow(3, 1, 4, only_full_files=False)
