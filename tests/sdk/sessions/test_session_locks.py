"""Session locks: renewal, expiry after the lock duration, and the errors of a receiver that lost its session."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import SessionLockLostError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from azure.servicebus import ServiceBusReceiver

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SHORTEST = {"RequiresSession": "true", "LockDuration": "PT5S"}
LOST: dict[str, Callable[[ServiceBusReceiver, Any], object]] = {
    "complete": lambda receiver, message: receiver.complete_message(message),
    "receive": lambda receiver, _: receiver.receive_messages(max_wait_time=5),
    "renew": lambda receiver, _: receiver.session.renew_lock(),
    "set state": lambda receiver, _: receiver.session.set_state("x"),
}
"""Operations that fail after a receiver has lost its session."""


def test_renewing_a_session_lock_extends_it(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    session = every_bus.receiver(queue, session_id="s").session
    before = session.locked_until_utc
    assert before is not None
    after = session.renew_lock()
    assert after > before
    assert session.locked_until_utc == after


def test_a_session_lock_expires_unless_it_is_renewed_automatically(bus: Bus, server: ServerProcess) -> None:
    """Test both cases at once, because the shortest lock lasts five seconds of real time.

    The SDK checks its own clock first; then the test resets the SDK's lock state, and the server refuses the operation.
    """
    queue, renewed_queue = server.create_queue(**SHORTEST), server.create_queue(**SHORTEST)
    sender, renewed_sender = bus.sender(queue), bus.sender(renewed_queue)
    renewed_sender.send_messages(ServiceBusMessage("renewed", session_id="s"))
    sender.send_messages([ServiceBusMessage(f"{name} {number}", session_id=name) for name in LOST for number in (1, 2)])
    started = time.monotonic()
    receivers = {name: bus.receiver(queue, session_id=name) for name in LOST}
    renewed_receiver = bus.receiver(renewed_queue, session_id="s")
    stop_renewing = bus.renew(renewed_receiver, renewed_receiver.session, seconds=60)
    [renewed] = receive(renewed_receiver, 1)
    with ThreadPoolExecutor(len(LOST)) as threads:
        held = dict(zip(LOST, threads.map(lambda receiver: receive(receiver, 1)[0], receivers.values()), strict=True))

    others = [bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30) for _ in LOST]
    assert {other.session.session_id for other in others} == set(LOST)
    assert 5 <= time.monotonic() - started < 20
    for name, receiver in receivers.items():
        with pytest.raises(SessionLockLostError):
            LOST[name](receiver, held[name])
        session: Any = receiver.session
        session.called._locked_until_utc, session.called._lock_lost = None, False  # noqa: SLF001  # the SDK considers its lock valid
        with pytest.raises(SessionLockLostError):
            LOST[name](receiver, held[name])
    for other in others:
        messages = receive(other, 2)
        name = other.session.session_id
        assert [body_of(message) for message in messages] == [f"{name} 1".encode(), f"{name} 2".encode()]
        assert [message.delivery_count for message in messages] == [1, 0]

    assert renewed_receiver.session.auto_renew_error is None
    renewed_receiver.complete_message(renewed)
    stop_renewing()
    assert server.message_counts(renewed_queue) == (0, 0)
