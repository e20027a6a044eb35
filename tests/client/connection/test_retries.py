"""Retry policies, `may_have_happened` of errors, and error classes of AMQP conditions."""

from __future__ import annotations

import pytest

from twinbus.client import NO_RETRY, RetryPolicy
from twinbus.client import errors as own
from twinbus.client.errors import error_for_condition, may_have_happened
from twinbus.model import errors


def test_pauses_grow_up_to_the_longest_pause_and_end_after_the_last_retry() -> None:
    policy = RetryPolicy(max_retries=4, first_pause_s=1, factor=3, longest_pause_s=10)
    pauses = [policy.pause_s(own.ConnectionLost("x"), failures) for failures in range(1, 6)]
    assert pauses == [1, 3, 9, 10, None]
    assert NO_RETRY.pause_s(own.ConnectionLost("x"), 1) is None


def test_server_busy_has_its_own_pause_and_errors_of_the_caller_are_not_retried() -> None:
    policy = RetryPolicy(busy_pause_s=7)
    assert policy.pause_s(errors.ServerBusy("x"), 100) == 7
    assert policy.pause_s(errors.Unauthorized("x"), 1) is None


@pytest.mark.parametrize(
    ("error", "is_possible"),
    [
        (own.ConnectionLost("x"), True),
        (own.UnknownAnswer("x"), True),
        (errors.InternalFault("x"), True),
        (errors.StoreUnavailable("x"), True),
        (errors.FragmentUnavailable("x"), True),
        (errors.OperationTimeout("x"), True),
        (own.TimedOut("x", was_sent=True), True),
        (own.TimedOut("x", was_sent=False), False),
        (own.ConnectionFailed("x"), False),
        (errors.ServerBusy("x"), False),
        (errors.MessageTooLarge("x"), False),
        (own.ObjectClosed("x"), False),
    ],
)
def test_an_error_says_whether_the_operation_may_have_happened(error: Exception, *, is_possible: bool) -> None:
    assert may_have_happened(error) is is_possible


def test_amqp_error_conditions_are_mapped_to_error_classes() -> None:
    lost = error_for_condition("amqp:connection:forced", "the server is stopping")
    assert isinstance(lost, own.ConnectionLost)
    missing = error_for_condition("amqp:not-found", "The messaging entity 'q' could not be found.")
    assert isinstance(missing, errors.EntityNotFound)
    assert isinstance(missing, errors.EntityDeleted)
    assert str(missing) == "The messaging entity 'q' could not be found."
    unknown = error_for_condition("example:new", "?")
    assert isinstance(unknown, own.UnknownAnswer)
    assert str(unknown) == "example:new: ?"
    for kind in (errors.ServerBusy, errors.MessageLockLost, errors.SessionLockLost, errors.LinkStolen):
        assert type(error_for_condition(kind.condition, "x")) is kind
