"""Defects of the SDK for Python when threads or tasks share one of its senders or receivers.

Its README says that its senders and receivers are not thread-safe, and its source shows where (azure-servicebus
7.15.0, `_pyamqp`, and the same lines in `_pyamqp/aio`):

- UNSENT: in `sender.py`, `send_transfer` appends a message to `_pending_deliveries`, while
  `update_pending_deliveries` and `_incoming_disposition` build a new list and assign it. A message that is appended in
  between is in no list: it is never sent, and `send_messages` waits forever.
- ANSWER: for the same reason, and because `delivery.sent = True` follows the writing of the transfer, a disposition
  finds its message not in the list, or not sent yet: the disposition is dropped.
- REPLY: in `management_link.py`, `execute_operation` writes the request, and only then notes that a reply is expected.
  A reply that another thread reads in between is dropped.
- TWICE: in `aio/_sender_async.py`, `update_pending_deliveries` has no lock. Tasks that run it at the same time each
  send the messages that are not `sent` yet.

A server cannot prevent these defects: UNSENT messages never reach it, and in the other cases it has responded. So they
are detected at run time, counted, and repaired as the SDK should have done: the lost messages, dispositions and replies
are restored. Everything else must work.

Owns: observing and repairing the SDK. It changes neither what the SDK sends nor any response.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus._pyamqp import management_link, sender
from azure.servicebus._pyamqp.aio import _management_link_async, _sender_async
from azure.servicebus._pyamqp.constants import LinkDeliverySettleReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL_INTERVAL_S: Final = 0.05
LOSS_TIMEOUT_S: Final = 0.3
"""Longer than one read of the SDK (0.2 s)."""

UNSENT_MESSAGE: Final = "UNSENT: a message that the SDK dropped from its list before it was sent"
DROPPED_DISPOSITION: Final = "ANSWER: a disposition that the SDK dropped"
DROPPED_REPLY: Final = "REPLY: a reply that the SDK dropped"
DUPLICATE_SEND: Final = "TWICE: a message that the SDK sent more than once"


class SdkObserver:
    """Records frames of the SDK, and restores lost ones."""

    def __init__(self) -> None:
        self.faults: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._deliveries: list[tuple[Any, Any]] = []
        """Each sent message, with its link."""
        self._dispositions: collections.defaultdict[Any, dict[int, Any]] = collections.defaultdict(dict)
        """Last settled state, by link and delivery id."""
        self._replies: dict[Any, tuple[Any, Any, Any, float]] = {}
        """Management link, frame, message and time of each reply, by correlation id."""
        self._requests: dict[Any, Any] = {}
        """Operations whose request was sent, by message id."""
        self._suspects: dict[int, float] = {}
        self.is_over = False

    # --- seen -----------------------------------------------------------------------------------------------------

    def sent(self, link: Any, delivery: Any) -> None:  # noqa: ANN401  # the SDK's own
        with self._lock:
            self._deliveries.append((link, delivery))

    def disposed(self, link: Any, frame: Any) -> None:  # noqa: ANN401  # the SDK's own
        if frame[3]:
            with self._lock:
                for delivery_id in range(frame[1], (frame[2] or frame[1]) + 1):
                    self._dispositions[link][delivery_id] = frame[4]

    def replied(self, link: Any, frame: Any, message: Any) -> None:  # noqa: ANN401  # the SDK's own
        with self._lock:
            self._replies[message.properties[5]] = (link, frame, message, time.monotonic())

    def requested(self, operation: Any) -> None:  # noqa: ANN401  # the SDK's own
        with self._lock:
            self._requests[operation.message.properties.message_id] = operation

    # --- given back -----------------------------------------------------------------------------------------------

    def lost(self) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]], list[tuple[Any, Any, Any]]]:
        """Return unlisted messages, settled messages with their states, and dropped replies."""
        now = time.monotonic()
        with self._lock:
            self._deliveries = [pair for pair in self._deliveries if not pair[1].settled]
            unsent: list[tuple[Any, Any]] = []
            unanswered: list[tuple[Any, Any]] = []
            for link, delivery in self._deliveries:
                is_listed = delivery in link._pending_deliveries  # noqa: SLF001
                if delivery.frame is None and not is_listed:
                    losses = unsent
                elif delivery.sent and delivery.frame["delivery_id"] in self._dispositions[link]:
                    losses = unanswered
                else:
                    self._suspects.pop(id(delivery), None)
                    continue
                if now - self._suspects.setdefault(id(delivery), now) > LOSS_TIMEOUT_S:
                    losses.append((link, delivery))
                    del self._suspects[id(delivery)]
            replies = []
            for number, (link, frame, message, received_s) in list(self._replies.items()):
                operation = self._requests.get(number)
                if operation is None or now - received_s < LOSS_TIMEOUT_S:
                    continue
                del self._replies[number], self._requests[number]
                if operation in link._pending_operations:  # noqa: SLF001
                    replies.append((link, frame, message))
            self.faults[DROPPED_DISPOSITION] += len(unanswered)
            self.faults[DROPPED_REPLY] += len(replies)
            return unsent, [(one, self._state_of(link, one)) for link, one in unanswered], replies

    def _state_of(self, link: Any, delivery: Any) -> Any:  # noqa: ANN401  # the SDK's own
        return self._dispositions[link][delivery.frame["delivery_id"]]

    def _list_again(self, link: Any, delivery: Any) -> None:  # noqa: ANN401  # the SDK's own
        if delivery.frame is None and delivery not in link._pending_deliveries:  # noqa: SLF001
            self.faults[UNSENT_MESSAGE] += 1
            link._pending_deliveries.append(delivery)  # noqa: SLF001

    def repair(self) -> None:
        """Restore what a sync client lost."""
        unsent, unanswered, replies = self.lost()
        for link, delivery in unsent:
            with link.lock:  # no other thread sends on the link or replaces its list
                self._list_again(link, delivery)
        for delivery, state in unanswered:
            delivery.on_settled(LinkDeliverySettleReason.DISPOSITION_RECEIVED, state)
        for link, frame, message in replies:
            link._on_message_received(frame, message)  # noqa: SLF001

    async def repair_aio(self) -> None:
        """Restore what an aio client lost."""
        unsent, unanswered, replies = self.lost()
        for link, delivery in unsent:
            self._list_again(link, delivery)
        for delivery, state in unanswered:
            await delivery.on_settled(LinkDeliverySettleReason.DISPOSITION_RECEIVED, state)
        for link, frame, message in replies:
            await link._on_message_received(frame, message)  # noqa: SLF001


WATCHED: Final = (
    ("SenderLink", "send_transfer"),
    ("SenderLink", "_incoming_disposition"),
    ("ManagementLink", "execute_operation"),
    ("ManagementLink", "_on_message_received"),
)
"""Observed methods. A link binds its methods when it is created: links that exist already are not observed."""


@contextmanager
def _replaced(modules: tuple[Any, Any], make: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    """Replace methods of the SDK; `make` gets the originals, and returns the replacements."""
    owners = [getattr(modules[0] if owner == "SenderLink" else modules[1], owner) for owner, _ in WATCHED]
    originals = [getattr(owner, name) for owner, (_, name) in zip(owners, WATCHED, strict=True)]
    try:
        for owner, (_, name), replacement in zip(owners, WATCHED, make(originals), strict=True):
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, (_, name), method in zip(owners, WATCHED, originals, strict=True):
            setattr(owner, name, method)


@contextmanager
def observe_sync() -> Iterator[SdkObserver]:
    """Observe the sync client, and repair its losses."""
    observed = SdkObserver()

    def make(originals: list[Any]) -> list[Any]:
        def send_transfer(self: Any, message: Any, **options: Any) -> Any:  # noqa: ANN401
            delivery = originals[0](self, message, **options)
            observed.sent(self, delivery)
            return delivery

        def incoming_disposition(self: Any, frame: Any) -> None:  # noqa: ANN401
            observed.disposed(self, frame)
            originals[1](self, frame)

        def execute_operation(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            operation = originals[2](self, *arguments, **options)
            observed.requested(operation)
            return operation

        def on_message_received(self: Any, frame: Any, message: Any) -> None:  # noqa: ANN401
            observed.replied(self, frame, message)
            originals[3](self, frame, message)

        return [send_transfer, incoming_disposition, execute_operation, on_message_received]

    def repair_repeatedly() -> None:
        while not observed.is_over:
            observed.repair()
            time.sleep(POLL_INTERVAL_S)

    watching = threading.Thread(target=repair_repeatedly, daemon=True)
    with _replaced((sender, management_link), make):
        watching.start()
        try:
            yield observed
        finally:
            observed.is_over = True
            watching.join()


@contextmanager
def observe_aio() -> Iterator[SdkObserver]:
    """Observe the aio client; `watch` repairs its losses on its loop."""
    observed = SdkObserver()

    def make(originals: list[Any]) -> list[Any]:
        async def send_transfer(self: Any, message: Any, **options: Any) -> Any:  # noqa: ANN401
            delivery = await originals[0](self, message, **options)
            observed.sent(self, delivery)
            return delivery

        async def incoming_disposition(self: Any, frame: Any) -> None:  # noqa: ANN401
            observed.disposed(self, frame)
            await originals[1](self, frame)

        async def execute_operation(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            operation = await originals[2](self, *arguments, **options)
            observed.requested(operation)
            return operation

        async def on_message_received(self: Any, frame: Any, message: Any) -> None:  # noqa: ANN401
            observed.replied(self, frame, message)
            await originals[3](self, frame, message)

        return [send_transfer, incoming_disposition, execute_operation, on_message_received]

    with _replaced((_sender_async, _management_link_async), make):
        yield observed


async def watch(observed: SdkObserver) -> None:
    """Repair the losses of the aio client until the scenarios end."""
    while not observed.is_over:
        await observed.repair_aio()
        await asyncio.sleep(POLL_INTERVAL_S)
