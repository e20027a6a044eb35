"""Updates of a queue in use: new properties take effect, invalid ones are refused and change nothing."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SLACK = dt.timedelta(seconds=10)
LONGER_THAN_MAXIMUM = "P10675200DT0S"
REFUSED: dict[str, list[Any]] = {
    "lock_duration": [dt.timedelta(days=25), dt.timedelta(seconds=4), dt.timedelta(0), "-PT30S", "PT5M0.001S"],
    "default_message_time_to_live": [dt.timedelta(0), "-P1D", "PT0.999S"],
    "duplicate_detection_history_time_window": [dt.timedelta(seconds=19), dt.timedelta(days=8), LONGER_THAN_MAXIMUM],
    "auto_delete_on_idle": [dt.timedelta(minutes=4, seconds=59), "-PT10M"],
    "max_delivery_count": [0, -1, 2**31],
    "max_size_in_megabytes": [0, 1000, 10**9],
    "status": ["Asleep"],
    "user_metadata": ["x" * 1025],
}


def status_of(call: Callable[[], object]) -> int | None:
    """Return the HTTP status of a call that must fail."""
    with pytest.raises(HttpResponseError) as caught:
        call()
    return caught.value.status_code


def test_new_lock_duration_max_delivery_count_and_time_to_live_take_effect(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    [first] = receive(receiver, 1)
    bus.update_queue(
        queue,
        lock_duration=dt.timedelta(minutes=5),
        max_delivery_count=1,
        default_message_time_to_live=dt.timedelta(hours=1),
    )
    now = dt.datetime.now(dt.UTC)
    [second] = receive(receiver, 1)
    assert abs(second.locked_until_utc - now - dt.timedelta(minutes=5)) < SLACK
    assert abs(receiver.renew_message_lock(first) - now - dt.timedelta(minutes=5)) < SLACK
    receiver.abandon_message(second)
    assert [body_of(message) for message in receive(dead_letters, 1)] == [b"2"]
    sender.send_messages(ServiceBusMessage("3"))
    [third] = receive(receiver, 1)
    assert (first.time_to_live, third.time_to_live) == (None, dt.timedelta(hours=1))
    receiver.complete_message(first)


def test_user_metadata_is_stored_unchanged(every_bus: Bus, queue: str) -> None:
    administration = every_bus.administration
    assert administration.get_queue(queue).user_metadata is None
    for text in (" <orders> & 'more' é中\n", "ü" * 1024):
        every_bus.update_queue(queue, user_metadata=text)
        assert administration.get_queue(queue).user_metadata == text


def test_an_update_changes_only_the_given_properties(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(
        LockDuration="PT17S", MaxDeliveryCount="7", RequiresSession="true", RequiresDuplicateDetection="true"
    )
    before = dict(bus.administration.get_queue(queue))
    bus.update_queue(queue, auto_delete_on_idle=dt.timedelta(minutes=9))
    after = dict(bus.administration.get_queue(queue))
    assert {name for name in before if before[name] != after[name]} == {"auto_delete_on_idle"}


def test_requires_session_and_duplicate_detection_cannot_be_changed(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    with_all = server.create_queue(RequiresSession="true", RequiresDuplicateDetection="true")
    for name, is_set in ((queue, False), (with_all, True)):
        for fixed in ("requires_session", "requires_duplicate_detection"):
            with pytest.raises(HttpResponseError, match="cannot be changed") as caught:
                bus.update_queue(name, **{fixed: not is_set})
            assert caught.value.status_code == 400
            assert bus.administration.get_queue(name)[fixed] is is_set


def test_invalid_properties_are_refused_on_create_and_on_update(bus: Bus, queue: str) -> None:
    administration = bus.administration
    before = administration.get_queue(queue)
    for name, values in REFUSED.items():
        for change in [{name: value} for value in values]:
            assert status_of(partial(administration.create_queue, f"{queue}-2", **change)) == 400, change
            assert status_of(partial(administration.update_queue, before, **change)) == 400, change
    assert dict(administration.get_queue(queue)) == dict(before)
    with pytest.raises(ResourceNotFoundError):
        administration.get_queue(f"{queue}-2")


def test_updating_a_missing_queue_is_refused(bus: Bus, queue: str) -> None:
    properties = bus.administration.get_queue(queue)
    properties.name = "nowhere"
    with pytest.raises(ResourceNotFoundError):
        bus.administration.update_queue(properties)
