"""Automatic lock renewal for received messages.

Owns the list of messages to renew and their due times. Locks that are due together are renewed with one request. A lost
lock is not renewed any more; the application gets the error when it settles the message.

Locks expire according to the namespace's clock, which this machine can only estimate. If the local clock is behind,
received messages seem to be enqueued in the future, and the difference is the lag. If the local clock is ahead, every
lock seems to have expired and is renewed at a fixed interval that suits the shortest possible lock.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.model.annotations import ENQUEUED_TIME
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from twinbus.client.receiver import MessageReceiver
    from twinbus.model.message import BrokeredMessage

log: Final = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 0.5
_RENEW_AT_SHARE: Final = 0.5
"""Share of the remaining lock duration after which a lock is renewed."""
_PAUSE_BETWEEN_RENEWALS_S: Final = 2.0
"""Delay between two renewals. The shortest lock duration is 5 seconds."""


class LockRenewal:
    """Renews the locks of one receiver's messages."""

    def __init__(self, receiver: MessageReceiver, max_duration_s: float) -> None:
        """Create a lock renewal without messages. The lock of each message is renewed for at most `max_duration_s`."""
        self._receiver = receiver
        self._max_duration_s = max_duration_s
        self._renew_until_s: dict[BrokeredMessage, float] = {}
        """When to stop renewing each message, in loop time."""
        self._clock_lag_ms = 0
        """Minimum time by which this machine's clock is behind the namespace's clock."""
        self._task: asyncio.Task[None] | None = None
        self._added = asyncio.Event()

    def add(self, message: BrokeredMessage) -> None:
        """Start renewing the lock of a received message."""
        loop = asyncio.get_running_loop()
        self._renew_until_s[message] = loop.time() + self._max_duration_s
        self._clock_lag_ms = max(self._clock_lag_ms, message.received.integer(ENQUEUED_TIME) - self._wall_ms())
        self._added.set()
        if self._task is None:
            self._task = loop.create_task(self._run())

    def remove(self, message: BrokeredMessage) -> None:
        """Stop renewing the lock of a message."""
        self._renew_until_s.pop(message, None)

    def close(self) -> None:
        """Stop all renewals."""
        self._renew_until_s.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now_s = loop.time()
            self._renew_until_s = {message: until for message, until in self._renew_until_s.items() if until > now_s}
            due_in_s = min((self._due_in_s(message) for message in self._renew_until_s), default=None)
            if due_in_s is None or due_in_s > 0:
                await self._sleep(due_in_s)
            else:
                await self._renew(
                    [message for message in self._renew_until_s if self._due_in_s(message) <= _MIN_PAUSE_S]
                )
                await asyncio.sleep(_PAUSE_BETWEEN_RENEWALS_S)

    async def _sleep(self, due_in_s: float | None) -> None:
        try:
            async with asyncio.timeout(due_in_s):
                await self._added.wait()
        except TimeoutError:
            pass

    def _due_in_s(self, message: BrokeredMessage) -> float:
        left_s = (message.received.locked_until_ms - self._wall_ms() - self._clock_lag_ms) / 1000
        return max(0.0, left_s * _RENEW_AT_SHARE - _MIN_PAUSE_S)

    def _wall_ms(self) -> int:
        return self._receiver.factory.settings.clock.wall_ms()

    async def _renew(self, messages: list[BrokeredMessage]) -> None:
        try:
            await self._receiver.renew_locks([message for message in messages if message.received.lock is not None])
        except ServiceBusError:
            await asyncio.gather(*[self._renew_one(message) for message in messages])

    async def _renew_one(self, message: BrokeredMessage) -> None:
        """Renew one lock after the renewal of a batch has failed, possibly because of another message's lost lock."""
        if message.received.lock is None:
            return
        try:
            await self._receiver.renew_lock(message)
        except ServiceBusError as error:
            if error.is_retriable and message.received.locked_until_ms > self._wall_ms() + self._clock_lag_ms:
                await asyncio.sleep(_MIN_PAUSE_S)
                return
            self.remove(message)
            log.warning("could not renew the lock of %r of '%s': %s", message, self._receiver.path, error)
