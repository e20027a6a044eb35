"""Counting of requests to `$management`.

Owns: the table of operations. A failed request is counted as one call; a request for several messages is counted once
per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twinbus.amqp.types import Array
from twinbus.model.usage import units_of
from twinbus.server.usage.counter import units_of_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.usage.counter import UsageCounter

    CountOperation: TypeAlias = Callable[[UsageCounter, Mapping[Any, object], Mapping[Any, object]], None]
    """A function that counts a request; its arguments are the counter and the bodies of the request and response."""


def count_operation(counter: UsageCounter, operation: str, request_body: object, response_body: object) -> None:
    """Count a request that got a response. Bodies that are not maps count as empty."""
    count = OPERATION_COUNTERS.get(operation)
    if count is not None:
        count(
            counter,
            request_body if isinstance(request_body, dict) else {},
            response_body if isinstance(response_body, dict) else {},
        )


def _read_items(body: Mapping[Any, object], name: str) -> list[Any]:
    value = body.get(name)
    return list(value.items) if isinstance(value, Array) else list(value) if isinstance(value, list) else []


def _count_items(body: Mapping[Any, object], name: str) -> int:
    """Return the number of items; 1 if there are none."""
    return max(1, len(_read_items(body, name)))


def _read_number(body: Mapping[Any, object], name: str) -> int:
    value = body.get(name)
    return max(1, value) if isinstance(value, int) else 1


def _read_messages(body: Mapping[Any, object]) -> list[bytes]:
    items = [item.get("message") for item in _read_items(body, "messages") if isinstance(item, dict)]
    return [bytes(message) for message in items if isinstance(message, bytes | bytearray | memoryview)]


def _state_units(*bodies: Mapping[Any, object]) -> int:
    states = [state for body in bodies if isinstance(state := body.get("session-state"), bytes)]
    return units_of(sum([len(state) for state in states]))


def _count_peek(
    counter: UsageCounter, _request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.peeks += 1


def _count_schedule(
    counter: UsageCounter, request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.schedules += max(1, sum([units_of_message(message) for message in _read_messages(request_body)]))


def _count_cancel(
    counter: UsageCounter, request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.schedules += _count_items(request_body, "sequence-numbers")


def _count_lock_renewals(
    counter: UsageCounter, request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.renewals += _count_items(request_body, "lock-tokens")


def _count_session_renewal(
    counter: UsageCounter, _request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.renewals += 1


def _count_receive_deferred(
    counter: UsageCounter, _request_body: Mapping[Any, object], response_body: Mapping[Any, object]
) -> None:
    messages = _read_messages(response_body)
    if messages:
        counter.add_receives([(message, b"") for message in messages])
    else:
        counter.empty_receives += 1


def _count_settlements(
    counter: UsageCounter, request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.settlements += _count_items(request_body, "lock-tokens")


def _count_session_state(
    counter: UsageCounter, request_body: Mapping[Any, object], response_body: Mapping[Any, object]
) -> None:
    counter.session_calls += _state_units(request_body, response_body)


def _count_list_sessions(
    counter: UsageCounter, _request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.session_calls += 1


def _count_removed(name: str) -> CountOperation:
    """Return a function that counts removed messages as settlements.

    `name` is the response field that holds the number or list of removed messages.
    """

    def count(counter: UsageCounter, _request_body: Mapping[Any, object], response_body: Mapping[Any, object]) -> None:
        counter.settlements += max(_read_number(response_body, name), _count_items(response_body, name))

    return count


def _count_nothing(
    _counter: UsageCounter, _request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    """Count nothing, because the operation is part of a receive, which is counted."""


def _count_management(
    counter: UsageCounter, request_body: Mapping[Any, object], _response_body: Mapping[Any, object]
) -> None:
    counter.management += _count_items(request_body, "sequence-numbers")


OPERATION_COUNTERS: Final[dict[str, CountOperation]] = {
    "com.microsoft:peek-message": _count_peek,
    "com.microsoft:schedule-message": _count_schedule,
    "com.microsoft:cancel-scheduled-message": _count_cancel,
    "com.microsoft:renew-lock": _count_lock_renewals,
    "com.microsoft:receive-by-sequence-number": _count_receive_deferred,
    "com.microsoft:update-disposition": _count_settlements,
    "com.microsoft:renew-session-lock": _count_session_renewal,
    "com.microsoft:set-session-state": _count_session_state,
    "com.microsoft:get-session-state": _count_session_state,
    "com.microsoft:get-message-sessions": _count_list_sessions,
    "com.microsoft:batch-delete-messages": _count_removed("message-count"),
    "com.microsoft:add-rule": _count_management,
    "com.microsoft:remove-rule": _count_management,
    "com.microsoft:enumerate-rules": _count_management,
    "twinbus:purge": _count_removed("removed"),
    "twinbus:delete-by-sequence-number": _count_removed("sequence-numbers"),
    "twinbus:resubmit": _count_management,
    "twinbus:move": _count_management,
    "twinbus:search": _count_peek,
    "twinbus:complete-up-to": _count_removed("completed"),
    "twinbus:fragments": _count_management,
    "twinbus:withhold": _count_nothing,
}
"""The counting functions of all operations."""
