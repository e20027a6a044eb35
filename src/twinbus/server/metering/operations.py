"""What requests to `$management` are counted as.

Owns: that table. A request that fails is counted as well, as the one call that it is; what is about several messages,
once for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twinbus.amqp.types import Array
from twinbus.model.usage import units_of
from twinbus.server.metering.counter import units_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.metering.counter import Counter

    Count: TypeAlias = Callable[[Counter, Mapping[Any, object], Mapping[Any, object]], None]
    """Adds what a request and its answer come to."""


def count_operation(counter: Counter, operation: str, asked: object, answered: object) -> None:
    """A request was answered; both are maps, or something else where nothing was understood."""
    count = COUNTED.get(operation)
    if count is not None:
        count(counter, asked if isinstance(asked, dict) else {}, answered if isinstance(answered, dict) else {})


def _items(body: Mapping[Any, object], name: str) -> list[Any]:
    found = body.get(name)
    return list(found.items) if isinstance(found, Array) else list(found) if isinstance(found, list) else []


def _each(body: Mapping[Any, object], name: str) -> int:
    """How many there are; one where nothing is said."""
    return max(1, len(_items(body, name)))


def _number(body: Mapping[Any, object], name: str) -> int:
    found = body.get(name)
    return max(1, found) if isinstance(found, int) else 1


def _messages(body: Mapping[Any, object]) -> list[bytes]:
    items = [item.get("message") for item in _items(body, "messages") if isinstance(item, dict)]
    return [bytes(message) for message in items if isinstance(message, bytes | bytearray | memoryview)]


def _state_units(*bodies: Mapping[Any, object]) -> int:
    states = [state for body in bodies if isinstance(state := body.get("session-state"), bytes)]
    return units_of(sum([len(state) for state in states]))


def _peek(counter: Counter, _asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.peeks += 1


def _schedule(counter: Counter, asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.schedules += max(1, sum([units_in(message) for message in _messages(asked)]))


def _cancel(counter: Counter, asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.schedules += _each(asked, "sequence-numbers")


def _renew_locks(counter: Counter, asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.renewals += _each(asked, "lock-tokens")


def _renew_session(counter: Counter, _asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.renewals += 1


def _receive_deferred(counter: Counter, _asked: Mapping[Any, object], answered: Mapping[Any, object]) -> None:
    messages = _messages(answered)
    if messages:
        counter.add_receives([(message, b"") for message in messages])
    else:
        counter.empty_receives += 1


def _settle(counter: Counter, asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.settlements += _each(asked, "lock-tokens")


def _keep_state(counter: Counter, asked: Mapping[Any, object], answered: Mapping[Any, object]) -> None:
    counter.session_calls += _state_units(asked, answered)


def _list_sessions(counter: Counter, _asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.session_calls += 1


def _remove(name: str) -> Count:
    """What ends messages as completing them would: once for each that it ended, as the answer says."""

    def count(counter: Counter, _asked: Mapping[Any, object], answered: Mapping[Any, object]) -> None:
        counter.settlements += max(_number(answered, name), _each(answered, name))

    return count


def _nothing(_counter: Counter, _asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    """It is part of a receive that is counted."""


def _manage(counter: Counter, asked: Mapping[Any, object], _answered: Mapping[Any, object]) -> None:
    counter.management += _each(asked, "sequence-numbers")


COUNTED: Final[dict[str, Count]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:schedule-message": _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:renew-lock": _renew_locks,
    "com.microsoft:receive-by-sequence-number": _receive_deferred,
    "com.microsoft:update-disposition": _settle,
    "com.microsoft:renew-session-lock": _renew_session,
    "com.microsoft:set-session-state": _keep_state,
    "com.microsoft:get-session-state": _keep_state,
    "com.microsoft:get-message-sessions": _list_sessions,
    "com.microsoft:batch-delete-messages": _remove("message-count"),
    "com.microsoft:add-rule": _manage,
    "com.microsoft:remove-rule": _manage,
    "com.microsoft:enumerate-rules": _manage,
    "twinbus:purge": _remove("removed"),
    "twinbus:delete-by-sequence-number": _remove("sequence-numbers"),
    "twinbus:resubmit": _manage,
    "twinbus:complete-up-to": _remove("completed"),
    "twinbus:fragments": _manage,
    "twinbus:withhold": _nothing,
}
"""All that there are."""
