"""The consumer of one HTTP request, which receives at most one message.

Owns: the message from delivery to response. If the caller disconnects before the response is sent, the message is
released. HTTP does not confirm that a response has arrived, so a message whose response was lost stays locked until its
lock expires.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.broker.ports.settlement import Disposition, lock_lost_error
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, Unauthorized
from twinbus.server.http.completion import wait_until_done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from twinbus.broker.namespace import Queue, Subscription, Transaction
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.server.http.call import Caller
    from twinbus.server.http.routes import Recheck


class PendingDeletion:
    """The pending deletion of a locked message, whose lock does not expire until commit or rollback."""

    def __init__(
        self,
        source: Queue | Subscription,
        fragment: FragmentPort,
        delivery: Delivery,
        caller: Caller,
        transaction: Transaction,
    ) -> None:
        """Settle the message in `transaction`. Raise MessageLockLost if its lock has expired."""
        self._fragment = fragment
        self._caller = caller
        self._lock_numbers = fragment.lock_numbers([delivery[1]])
        self._transaction = transaction
        if transaction.settle(source.parts[fragment.number], fragment, self._lock_numbers, Disposition.COMPLETE):
            raise lock_lost_error()

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller has disconnected."""
        return self._caller.closed.done()

    async def commit(self) -> None:
        """Delete the message after the response was written. A caller that has disconnected since may have read it."""
        with suppress(ServiceBusError):  # the store is down; when it is back, the message is delivered again
            await wait_until_done(self._transaction.commit)

    def roll_back(self) -> None:
        """Release the message, which the caller has not seen."""
        self._transaction.roll_back()
        with suppress(ServiceBusError):  # the store is down, and has lost the lock
            self._fragment.settlement.release(self._lock_numbers, ignore)


class DeletingResponse(Response):
    """A response with a message that is deleted before the next request on the same connection is read."""

    deletion: PendingDeletion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # Starlette's signature
        """Send the message, delete it, and finish the response."""
        if self.deletion.is_abandoned:
            self.deletion.roll_back()
            return
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
        except BaseException:
            self.deletion.roll_back()
            raise
        await self.deletion.commit()
        await send({"type": "http.response.body"})


class HttpReceiver:
    """A consumer that receives at most one message."""

    receive_and_delete = False

    def __init__(self, fragments: Sequence[FragmentPort], caller: Caller, recheck: Recheck | None = None) -> None:
        """Create a consumer of `fragments`, which have no sessions. `recheck` raises if the key has been changed."""
        self._multi_receiver = MultiFragmentReceiver(fragments)
        self._caller = caller
        self._recheck = recheck
        self.receiver_identity = ReceiverIdentity()
        self._reserved_credit = 0
        self._outcome: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()

    async def receive(self, wait_s: float) -> Delivery | None:
        """Return a message, or None if none arrives within `wait_s`.

        Raise ClientDisconnect if the caller disconnects, Unauthorized if the key was changed while the request waited.
        """
        self._multi_receiver.add(self)
        try:
            self._multi_receiver.dispatch_to(self)
            await self._wait_for_outcome(self._caller.respond_now, timeout_s=wait_s)
            if not self._outcome.done():
                # Reading from disk takes time. Drain, so that a timeout of 0 still returns an available message.
                self._multi_receiver.drain(self, self._on_drained)
                await self._wait_for_outcome()
        except asyncio.CancelledError:
            self._release()
            raise
        finally:
            self._multi_receiver.remove(self)
            self._outcome.cancel()  # accept no message from now on
        if self._caller.closed.done():
            self._release()
            raise ClientDisconnect
        try:
            if self._recheck is not None:
                self._recheck()
        except Unauthorized:
            self._release()
            raise
        return self._outcome.result()

    async def _wait_for_outcome(self, *other_futures: asyncio.Future[None], timeout_s: float | None = None) -> None:
        futures: list[asyncio.Future[Any]] = [self._outcome, self._caller.closed, *other_futures]
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _release(self) -> None:
        if self._outcome.done() and not self._outcome.cancelled() and self._outcome.exception() is None:
            delivery = self._outcome.result()
            if delivery is not None:
                with suppress(ServiceBusError):  # the store is down, and has lost the lock
                    fragment = self._multi_receiver.fragment_of_tag(delivery[1])
                    fragment.settlement.release(fragment.lock_numbers([delivery[1]]), ignore)

    def _on_drained(self) -> None:
        if not self._outcome.done():
            self._outcome.set_result(None)

    # --- consumer interface, called by fragments ----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the request has its outcome, or the caller has disconnected."""
        return self._outcome.done() or self._caller.closed.done()

    @property
    def available_credit(self) -> int:
        """1 until a message is delivered; 0 while the credit is reserved for a fragment of another process."""
        return 0 if self.is_closed else 1 - self._reserved_credit

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for a fragment of another process; a negative `count` returns credit."""
        self._reserved_credit += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Take the first message and return 1, or return 0 if this receiver is closed.

        A message can arrive after this receiver was closed, because another process may have sent the message earlier.
        """
        if self.is_closed:
            return 0
        self._outcome.set_result(deliveries[0])
        return 1

    def request_messages(self) -> None:
        """Ask the fragments for a message again, because credit was returned."""
        if not self.is_closed:
            self._multi_receiver.dispatch_to(self)

    def on_admitted(self) -> None:
        """Do nothing when a fragment of another process has attached this consumer."""

    def force_detach(self, error: ServiceBusError) -> None:
        """Fail the request with an error, because the entity was deleted or disabled."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Fail the request with an error. This method is never called, because the fragments have no sessions."""
        self.force_detach(error)
