"""Renewing the locks of messages that are being worked on.

Owns: which messages those are, and when each is due. Renewals of one turn go in one request; a message whose lock is
lost is no longer renewed, and whoever settles it is told then.

A lock ends by the namespace's clock, and what we have is this machine's. Where that is behind, messages tell so: they
were enqueued before they came. Where it is ahead every lock seems to be over, and is renewed as often as the shortest
lock there is would want it.
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
"""Of what is left of a lock, after which it is renewed."""
_PAUSE_BETWEEN_RENEWALS_S: Final = 2.0
"""Between two renewals: a lock lasts 5 seconds at least."""


class LockRenewal:
    """Of one receiver."""

    def __init__(self, receiver: MessageReceiver, max_duration_s: float) -> None:
        """A message is renewed for `longest_s` at most."""
        self._receiver = receiver
        self._max_duration_s = max_duration_s
        self._renew_until_s: dict[BrokeredMessage, float] = {}
        """When a message is no longer renewed, by the loop's time."""
        self._clock_lag_ms = 0
        """By how much this machine's clock is behind the namespace's, at least."""
        self._task: asyncio.Task[None] | None = None
        self._added = asyncio.Event()

    def add(self, message: BrokeredMessage) -> None:
        """A message was received."""
        loop = asyncio.get_running_loop()
        self._renew_until_s[message] = loop.time() + self._max_duration_s
        self._clock_lag_ms = max(self._clock_lag_ms, message.received.integer(ENQUEUED_TIME) - self._wall_ms())
        self._added.set()
        if self._task is None:
            self._task = loop.create_task(self._run())

    def remove(self, message: BrokeredMessage) -> None:
        """It was settled."""
        self._renew_until_s.pop(message, None)

    def close(self) -> None:
        """Renew no more."""
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
        """One of them was the reason why none was renewed; or the namespace does not answer, which is seen again."""
        if message.received.lock is None:
            return
        try:
            await self._receiver.renew_lock(message)
        except ServiceBusError as error:
            if error.is_retriable and message.received.locked_until_ms > self._wall_ms() + self._clock_lag_ms:
                await asyncio.sleep(_MIN_PAUSE_S)
                return
            self.remove(message)
            log.warning("the lock of %r of '%s' was not renewed: %s", message, self._receiver.path, error)
