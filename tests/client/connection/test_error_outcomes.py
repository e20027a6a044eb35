"""`may_have_happened`: one notion of an uncertain outcome, which every error has, and keeps wherever it goes."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import pytest

from twinbus.amqp.performatives import Error
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
ALL = {
    kind
    for module in MODULES
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, ServiceBusError)
}
UNSURE_BY_NATURE = {
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


def made(kind: type[ServiceBusError]) -> ServiceBusError:
    if kind is NotSent:
        return NotSent("orders", ConnectionLost("gone"), {"a": TimedOut("late")}, stored=[0, 1, 4])
    if kind is of_pairs.PrimaryLost:
        return of_pairs.PrimaryLost("orders", ConnectionLost("gone"))
    return kind("orders")


def test_q03_q04_these_classes_are_uncertain_unless_more_is_known() -> None:
    assert {kind.__name__ for kind in ALL if kind.may_have_happened} == UNSURE_BY_NATURE


@pytest.mark.parametrize("value", [True, False])
def test_q03_q04_an_error_survives_a_copy_and_another_process(*, value: bool) -> None:
    assert len(ALL) > 50
    for kind in ALL:
        error = made(kind)
        told = error.copy_with(may_have_happened=value)
        for other in (copy.copy(told), pickle.loads(pickle.dumps(told))):  # noqa: S301  # our own
            assert type(other) is kind
            assert str(other) == str(error)
            assert other.__dict__.keys() == told.__dict__.keys()
            assert may_have_happened(other) is value


def test_q03_q04_an_error_that_many_callers_get_is_not_changed_for_one_of_them() -> None:
    shared = TimedOut("attaching took too long", may_have_happened=False)
    doubted = adjusted_send_error(shared, may_have_happened=True)
    assert (doubted.may_have_happened, shared.may_have_happened) == (True, False)
    assert str(shared) == "attaching took too long"


def test_q03_q04_the_older_names_say_the_same_and_cannot_be_set() -> None:
    for value in (True, False):
        late = TimedOut("late", was_sent=value)
        assert late.was_sent is late.may_have_happened is value
        unsent = NotSent("orders", None, {}, may_have_happened=value)
        assert unsent.may_have_arrived is unsent.may_have_happened is value
    with pytest.raises(AttributeError):
        TimedOut("late").was_sent = False  # type: ignore[misc]


def test_q22_a_batch_of_which_messages_are_safe_is_uncertain_and_names_them() -> None:
    split = NotSent("orders", None, {}, stored=[0, 1, 4])
    assert (split.stored, split.safe, split.may_have_happened) == ([0, 1, 4], 2, True)
    assert "3 messages of it are safe, the others were not sent" in str(split)
    assert "its first 2 messages are safe" in str(NotSent("orders", None, {}, stored=range(2)))
    unsure = NotSent("orders", None, {}, stored=[0], may_have_happened=True)
    assert "the others may have been stored, too" in str(unsure)


def test_q03_q04_what_is_no_error_of_ours_is_certain_unless_it_was_cancelled() -> None:
    assert not may_have_happened(ValueError("no"))
    assert may_have_happened(asyncio.CancelledError())
    assert may_have_happened(TimeoutError()), "as asyncio.timeout makes of it"


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
    told = adjusted_send_error(last, may_have_happened=True)
    assert type(told) is expected
    assert told.may_have_happened
    assert "it may have been stored" in str(told)


def test_q03_q04_a_send_of_which_nothing_left_is_certain() -> None:
    assert type(adjusted_send_error(ConnectionLost("while attaching"), may_have_happened=False)) is ConnectionFailed
    late = adjusted_send_error(TimedOut("attaching took too long"), may_have_happened=False)
    assert (str(late), late.may_have_happened) == ("attaching took too long: it was not sent", False)
    assert not adjusted_send_error(StoreUnavailable("while attaching"), may_have_happened=False).may_have_happened


def test_q03_q04_an_operation_is_uncertain_if_an_earlier_attempt_is() -> None:
    doubt = OperationOutcome()
    doubt.note_failure(ConnectionLost("gone"))
    with (
        pytest.raises(EntityNotFound, match=r"may have been carried out; then .*'orders'") as raised,
        doubt.adjusted_errors(),
    ):
        raise EntityNotFound("orders")
    assert raised.value.may_have_happened
    with pytest.raises(ConnectionLost) as sure, OperationOutcome().adjusted_errors():
        raise ConnectionLost("while attaching")
    assert not sure.value.may_have_happened


def test_q03_q04_a_namespace_says_what_it_knows_beyond_the_class() -> None:
    plain = to_amqp_error(DiskFull("full"))
    certain = to_amqp_error(DiskFull("full", may_have_happened=False))
    assert error_from_peer(plain).may_have_happened
    found = error_from_peer(certain)
    assert isinstance(found, DiskFull)
    assert not found.may_have_happened
    strange = Error(condition=Symbol("amqp:internal-error"), info={Symbol("twinbus:may-have-happened"): "no"})
    assert error_from_peer(strange).may_have_happened, "what is no boolean says nothing"
