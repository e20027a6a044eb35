"""`may_have_happened`: every error says whether its operation may have taken effect, also in copies and pickles."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import pytest

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.client import errors as of_client
from twinbus.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    FactoryFaulted,
    ObjectClosed,
    TimedOut,
    error_from_peer,
    may_have_happened,
)
from twinbus.client.pairing import errors as of_pairs
from twinbus.client.pairing.errors import NotSent
from twinbus.client.retry import OperationOutcome, adjusted_send_error
from twinbus.model import errors as model
from twinbus.model.errors import DiskFull, EntityDisabled, EntityNotFound, ServiceBusError, StoreUnavailable
from twinbus.server.amqp.errors import to_amqp_error

MODULES = (model, of_client, of_pairs)
ERROR_CLASSES = {
    kind
    for module in MODULES
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, ServiceBusError)
}
UNCERTAIN_BY_DEFAULT = {
    "ConnectionLost",
    "UnknownAnswer",
    "InternalFault",
    "StoreUnavailable",
    "FragmentUnavailable",
    "DiskFull",
    "OperationTimeout",
    "TimedOut",
    "PartlyStored",
}


def make_error(kind: type[ServiceBusError]) -> ServiceBusError:
    if kind is NotSent:
        return NotSent("orders", ConnectionLost("gone"), {"a": TimedOut("late")}, stored=[0, 1, 4])
    if kind is of_pairs.PrimaryLost:
        return of_pairs.PrimaryLost("orders", ConnectionLost("gone"))
    return kind("orders")


def test_q03_q04_these_error_classes_are_uncertain_by_default() -> None:
    assert {kind.__name__ for kind in ERROR_CLASSES if kind.may_have_happened} == UNCERTAIN_BY_DEFAULT


@pytest.mark.parametrize("value", [True, False])
def test_q03_q04_copies_and_pickles_of_an_error_keep_may_have_happened(*, value: bool) -> None:
    assert len(ERROR_CLASSES) > 50
    for kind in ERROR_CLASSES:
        error = make_error(kind)
        adjusted = error.copy_with(may_have_happened=value)
        for other in (copy.copy(adjusted), pickle.loads(pickle.dumps(adjusted))):  # noqa: S301  # our own
            assert type(other) is kind
            assert str(other) == str(error)
            assert other.__dict__.keys() == adjusted.__dict__.keys()
            assert may_have_happened(other) is value


def test_q03_q04_adjusting_an_error_for_one_caller_does_not_change_the_shared_error() -> None:
    shared = TimedOut("attaching took too long", may_have_happened=False)
    adjusted = adjusted_send_error(shared, may_have_happened=True)
    assert (adjusted.may_have_happened, shared.may_have_happened) == (True, False)
    assert str(shared) == "attaching took too long"


def test_q03_q04_the_older_attribute_names_are_read_only_aliases() -> None:
    for value in (True, False):
        late = TimedOut("late", was_sent=value)
        assert late.was_sent is late.may_have_happened is value
        unsent = NotSent("orders", None, {}, may_have_happened=value)
        assert unsent.may_have_arrived is unsent.may_have_happened is value
    with pytest.raises(AttributeError):
        TimedOut("late").was_sent = False  # type: ignore[misc]


def test_q22_a_partly_stored_batch_is_uncertain_and_lists_the_stored_messages() -> None:
    split = NotSent("orders", None, {}, stored=[0, 1, 4])
    assert (split.stored, split.safe, split.may_have_happened) == ([0, 1, 4], 2, True)
    assert "3 of its messages are safe, the others were not sent" in str(split)
    assert "its first 2 messages are safe" in str(NotSent("orders", None, {}, stored=range(2)))
    unsure = NotSent("orders", None, {}, stored=[0], may_have_happened=True)
    assert "the others may have been stored, too" in str(unsure)


def test_q03_q04_foreign_errors_are_certain_except_cancellation_and_timeouts() -> None:
    assert not may_have_happened(ValueError("no"))
    assert may_have_happened(asyncio.CancelledError())
    assert may_have_happened(TimeoutError()), "asyncio.timeout raises it for a cancelled operation"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (ConnectionFailed("refused"), ConnectionLost),
        (ObjectClosed("closed"), ConnectionLost),
        (FactoryFaulted("faulted"), ConnectionLost),
        (EntityDisabled("disabled"), EntityDisabled),
        (TimedOut("late", may_have_happened=False), TimedOut),
    ],
)
def test_q03_q04_a_send_is_uncertain_if_any_of_its_attempts_is(
    last: ServiceBusError, expected: type[ServiceBusError]
) -> None:
    adjusted = adjusted_send_error(last, may_have_happened=True)
    assert type(adjusted) is expected
    assert adjusted.may_have_happened
    assert "it may have been stored" in str(adjusted)


def test_q03_q04_a_send_that_transferred_nothing_is_certain() -> None:
    assert type(adjusted_send_error(ConnectionLost("while attaching"), may_have_happened=False)) is ConnectionFailed
    late = adjusted_send_error(TimedOut("attaching took too long"), may_have_happened=False)
    assert (str(late), late.may_have_happened) == ("attaching took too long: it was not sent", False)
    assert not adjusted_send_error(StoreUnavailable("while attaching"), may_have_happened=False).may_have_happened


def test_q03_q04_an_operation_is_uncertain_if_an_earlier_attempt_is() -> None:
    outcome = OperationOutcome()
    outcome.note_failure(ConnectionLost("gone"))
    with (
        pytest.raises(EntityNotFound, match=r"may have been carried out; then .*'orders'") as raised,
        outcome.adjusted_errors(),
    ):
        raise EntityNotFound("orders")
    assert raised.value.may_have_happened
    with pytest.raises(ConnectionLost) as raised_certain, OperationOutcome().adjusted_errors():
        raise ConnectionLost("while attaching")
    assert not raised_certain.value.may_have_happened


def test_q03_q04_a_namespace_can_override_the_default_of_an_error_class() -> None:
    plain = to_amqp_error(DiskFull("full"))
    certain = to_amqp_error(DiskFull("full", may_have_happened=False))
    assert error_from_peer(plain).may_have_happened
    parsed = error_from_peer(certain)
    assert isinstance(parsed, DiskFull)
    assert not parsed.may_have_happened
    malformed = Error(condition=Symbol("amqp:internal-error"), info={Symbol("twinbus:may-have-happened"): "no"})
    assert error_from_peer(malformed).may_have_happened, "a value that is not a boolean is ignored"
