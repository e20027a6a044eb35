"""Preparation of the secondary: finding or creating the backlog queues.

With `require_secondary`, pairing waits for the preparation, but no longer than the operation timeout of the primary
factory. Otherwise the preparation runs in the background and is repeated until it succeeds, so that an application
starts at once even if the secondary is down.

Owns: when the secondary is prepared, and when the pair is reported as unprotected: after the first failure, or when the
first preparation has taken `UNPROTECTED_AFTER_S`. The preparation of a healthy secondary takes a few milliseconds,
which is not worth an alarm. Knows nothing of how queues are created (`rotation`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.errors import PairingFailed
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.pairing.backlog.rotation import Rotation
    from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
    from twinbus.client.pairing.options import SendAvailabilityPairedNamespaceOptions

log: Final = logging.getLogger(__name__)

UNPROTECTED_AFTER_S: Final = 3.0
"""The time the first preparation may take before the pair is reported as unprotected."""
RETRY_S: Final = 10.0
"""The pause between a failed preparation and the next one."""


class SecondaryPreparation:
    """The preparation of one pair's secondary."""

    def __init__(
        self,
        rotation: Rotation,
        options: SendAvailabilityPairedNamespaceOptions,
        *,
        limit_s: float,
        events: PairEventPublisher,
        on_prepared: Callable[[], None],
    ) -> None:
        """Create a preparation whose attempts may each take `limit_s`.

        `on_prepared` is called once, when the queues exist.
        """
        self._rotation = rotation
        self._options = options
        self._limit_s = limit_s
        self._events = events
        self._on_prepared = on_prepared
        self._last_error: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_reported_unprotected = False
        self._first_attempt_done = asyncio.Event()
        self._protection_known = asyncio.Event()

    @property
    def failure(self) -> Exception:
        """The reason why there are no backlog queues."""
        address = self._options.secondary_factory.address
        return self._last_error or PairingFailed(f"the backlog queues of the secondary {address} are not prepared yet")

    async def run(self) -> None:
        """Prepare once. Raise PairingFailed or Unauthorized if the preparation fails or takes too long."""
        try:
            async with asyncio.timeout(self._limit_s):
                await self._rotation.prepare(self._options.backlog_queue_count)
        except TimeoutError:
            raise PairingFailed(
                f"the secondary {self._options.secondary_factory.address} was not prepared within {self._limit_s:g} s"
            ) from None
        self._on_prepared()
        self._first_attempt_done.set()
        self._protection_known.set()

    def start(self) -> None:
        """Prepare in the background, with retries until a preparation succeeds."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Cancel the preparation and release the sends that wait for it. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait_for_first_attempt(self, limit_s: float) -> None:
        """Wait until the first preparation has succeeded or failed, but no longer than `limit_s`."""
        await _wait_for(self._first_attempt_done, limit_s)

    async def wait_until_protection_known(self, limit_s: float) -> None:
        """Wait until the queues exist or the pair is reported as unprotected, but no longer than `limit_s`."""
        await _wait_for(self._protection_known, limit_s)

    async def _run(self) -> None:
        address = self._options.secondary_factory.address
        reason = f"the secondary {address} was not prepared within {UNPROTECTED_AFTER_S:g} s; the preparation continues"
        alarm = asyncio.get_running_loop().call_later(UNPROTECTED_AFTER_S, self._report_unprotected, reason)
        try:
            while not self._options.secondary_factory.ended.is_set():
                try:
                    await self.run()
                except Exception as error:  # noqa: BLE001  # after any error, a later attempt may succeed
                    self._on_failure(error)
                else:
                    self._events.emit(EventKind.PROTECTED)
                    return
                self._first_attempt_done.set()
                await asyncio.sleep(RETRY_S)
        finally:
            alarm.cancel()
            self._first_attempt_done.set()
            self._protection_known.set()

    def _on_failure(self, error: Exception) -> None:
        self._last_error = error
        if not isinstance(error, ServiceBusError):
            log.error("the secondary could not be prepared because of a bug in twinbus", exc_info=error)
        self._report_unprotected(str(error))

    def _report_unprotected(self, reason: str) -> None:
        if self._has_reported_unprotected:
            log.debug("still unprotected: %s", reason)  # the alarm and the status already report the failure
            return
        self._has_reported_unprotected = True
        self._events.emit(EventKind.UNPROTECTED, reason=reason)
        self._protection_known.set()


async def _wait_for(event: asyncio.Event, limit_s: float) -> None:
    if not event.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await event.wait()
