"""The two factories of a pair end together, in an application that hosts the syphon (R075 to R079).

Owns: the watch over both. When one is closed or faults while the other is neither, the other has a grace of 5 seconds
to be closed, too; else it is faulted, with an error that names both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.client.factory_state import FactoryState
from twinbus.client.pairing.errors import PairedMessagingFactoryError
from twinbus.client.pairing.events import EventKind
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.pairing import Pairing


class Coordination:
    """Of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """`start` begins."""
        self._pairing = pairing
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch from now on."""
        primary, secondary = self._pairing.primary, self._pairing.secondary
        self._tasks = [
            asyncio.ensure_future(self._watch(primary, secondary)),
            asyncio.ensure_future(self._watch(secondary, primary)),
        ]

    def close(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self, one: MessagingFactory, partner: MessagingFactory) -> None:
        """Fault `partner` if it outlives `one` for too long."""
        await one.ended.wait()
        options = self._pairing.options
        has_faulted = one.state is FactoryState.FAULTED
        grace_s = duration_s(options.fault_grace if has_faulted else options.close_grace)
        try:
            async with asyncio.timeout(grace_s):
                await partner.ended.wait()
        except TimeoutError:
            reason = f"has faulted ({one.fault})" if has_faulted else "was closed"
            error = PairedMessagingFactoryError(
                f"the factory for {one.address} {reason}, and its partner for {partner.address} was not closed within"
                f" {grace_s:g} s: it is faulted"
            )
            partner.abort(error)
            self._pairing.pair_events.emit(EventKind.FACTORY_FAULTED, reason=str(error))
