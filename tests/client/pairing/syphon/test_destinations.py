"""A destination of parked messages, response by response: which messages wait if a fragment accepts none."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.partitioned_namespace import key_for_fragment
from twinbus.amqp.message import Message
from twinbus.client.pairing.backlog.rewriting import RestoredMessage
from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
from twinbus.client.pairing.syphon.deferral import Deferral
from twinbus.client.pairing.syphon.deferred_requests import STATUS_COMPLETED
from twinbus.client.pairing.syphon.destination import MAX_BATCH_MESSAGES, Destination
from twinbus.client.pairing.syphon.parked_message import DeferredParkedMessage, DeferredSettlement
from twinbus.client.pairing.syphon.wakeups import Wakeups
from twinbus.model.errors import FragmentUnavailable, MessageLockLost, PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage
from twinbus.testing import in_virtual_time
from twinbus.testing.clock import LoopClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.pairing.syphon.deferred_requests import DeferredRequests
    from twinbus.client.pairing.syphon.parked_message import DeliveredParkedMessage, ParkedMessage
    from twinbus.client.pairing.syphon.withheld_messages import WithheldPaths
    from twinbus.client.sender import MessageSender

pytestmark = pytest.mark.interpreted  # parked messages with a fake origin
DOWN, UP, OTHER = key_for_fragment(5), key_for_fragment(2), key_for_fragment(5, 1)


class FakePrimary:
    """A sender to the primary that responds only when the test calls `answer`."""

    path = "orders"
    failure = None

    def __init__(self) -> None:
        self.sends: list[tuple[list[str], asyncio.Future[object]]] = []

    async def link(self, _policy: object) -> FakePrimary:
        return self

    def send(self, payload: bytes, message_format: int = 0) -> asyncio.Future[object]:
        payloads = Message(payload).data if message_format == BATCH_FORMAT else [payload]
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.sends.append(([BrokeredMessage.decode(item).text for item in payloads], future))
        return future

    def withdraw(self, _future: object) -> bool:
        return False

    async def answer(self, error: ServiceBusError | None = None) -> list[str]:
        """Respond to the oldest send, and return the texts of its messages."""
        await asyncio.sleep(0.001)
        texts, future = self.sends.pop(0)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await asyncio.sleep(0.001)
        return texts


class DestinationHarness:
    """A destination with a fake primary, and a record of how its parked messages were settled."""

    def __init__(self) -> None:
        self.primary = FakePrimary()
        self.deferred: list[str] = []
        self.completed: list[str] = []
        self.refuses_completion = False
        self.destination = Destination(
            cast("MessageSender", self.primary),
            "backlog",
            PairEventPublisher(LoopClock()),
            source=self,
            on_primary_lost=lambda error: None,  # noqa: ARG005
            wakeups=Wakeups(),
        )
        self._origin = DeferredSettlement(cast("DeferredRequests", self), asyncio.ensure_future)
        self._parked: dict[int, DeferredParkedMessage] = {}
        self._texts: dict[uuid.UUID, str] = {}

    def receive(self, text: str, session_id: str) -> None:
        self.destination.submit(self._parked[self.add(text, session_id)])

    def parked_message(self, number: int) -> DeferredParkedMessage:
        return self._parked[number]

    def add(self, text: str, session_id: str) -> int:
        """Add a message to the backlog queue, and return its sequence number."""
        payload = BrokeredMessage(text, session_id=session_id).encode(0)
        number = len(self._parked) + 1
        lock = uuid.UUID(int=number)
        self._texts[lock] = text
        self._parked[number] = DeferredParkedMessage(
            self._origin, RestoredMessage("orders", session_id, payload, number), lock
        )
        return number

    async def settle(self, status: str, locks: Sequence[uuid.UUID], _more: object) -> None:
        """Settle messages as `DeferredRequests` does."""
        if status == STATUS_COMPLETED and self.refuses_completion:
            raise MessageLockLost("too late")
        texts = [self._texts[lock] for lock in locks]
        if status == STATUS_COMPLETED:
            self.completed += texts
        else:
            self.deferred += texts

    max_per_request = 15

    @property
    def withheld_paths(self) -> WithheldPaths:
        raise AssertionError("messages that were deferred are not withheld")

    def restore_again(self, message: DeliveredParkedMessage) -> bool:
        raise AssertionError(message)

    def release(self, messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
        raise AssertionError(messages)

    def has_exclusive_access(self) -> bool:
        return True

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[ParkedMessage]:
        return [self._parked[number] for number in sequence_numbers]


def down(fragment: int = 5) -> FragmentUnavailable:
    error = FragmentUnavailable("it is down")
    error.fragment = fragment
    return error


@in_virtual_time
async def test_q18_messages_behind_a_message_whose_fragment_is_down_are_deferred_with_it() -> None:
    harness = DestinationHarness()
    for number in range(MAX_BATCH_MESSAGES + 5):
        harness.receive(f"{number}", DOWN)
    harness.receive("up", UP)
    harness.receive("other", OTHER)
    assert await harness.primary.answer(down()) == [f"{number}" for number in range(MAX_BATCH_MESSAGES)]
    assert harness.deferred == [*(f"{number}" for number in range(MAX_BATCH_MESSAGES + 5)), "other"]
    assert await harness.primary.answer() == ["up"]
    assert harness.primary.sends == []
    harness.destination.close()


@in_virtual_time
async def test_q19_later_messages_whose_fragment_is_down_are_deferred_and_come_back_in_order() -> None:
    harness = DestinationHarness()
    harness.receive("1", DOWN)
    harness.receive("2", UP)
    assert await harness.primary.answer(down()) == ["1", "2"]
    harness.receive("3", DOWN)
    harness.receive("4", UP)
    assert await harness.primary.answer() == ["2"]
    assert await harness.primary.answer() == ["4"]
    assert harness.deferred == ["1", "3"]
    await asyncio.sleep(1)
    assert await harness.primary.answer() == ["1"], "this send is a probe"
    assert await harness.primary.answer() == ["3"]
    assert harness.completed == ["2", "4", "1", "3"]
    harness.receive("5", DOWN)
    assert await harness.primary.answer() == ["5"]
    harness.destination.close()


@in_virtual_time
async def test_q18_a_session_with_messages_in_flight_continues_behind_these() -> None:
    harness = DestinationHarness()
    harness.receive("1", DOWN)
    await asyncio.sleep(0.001)
    harness.receive("2", OTHER)  # waits for the response to the first, or for more messages
    for number in range(MAX_BATCH_MESSAGES):
        harness.receive(f"up {number}", f"{number}")  # fills the batch
    await asyncio.sleep(0.001)
    first, second = harness.primary.sends
    second[1].set_exception(down())
    await asyncio.sleep(0.001)
    assert harness.deferred[0] == "2"
    harness.receive("3", DOWN)
    assert "3" not in harness.deferred
    first[1].set_result(None)
    await asyncio.sleep(0.001)
    assert any("3" in texts for texts, _ in harness.primary.sends), (
        "its session is not held up: the earlier messages have been sent"
    )
    harness.destination.close()


@in_virtual_time
async def test_if_a_batch_is_stored_in_part_that_part_is_completed_and_the_rest_sent_again() -> None:
    harness = DestinationHarness()
    for number in range(4):
        harness.receive(f"{number}", DOWN if number % 2 else UP)
    error = PartlyStored("in part")
    error.stored = [0, 1]
    assert await harness.primary.answer(error) == ["0", "2", "1", "3"]
    assert harness.completed == ["0", "2"]
    assert await harness.primary.answer(down()) == ["1", "3"]
    assert harness.deferred == ["1", "3"]
    harness.destination.close()


@in_virtual_time
async def test_q17_an_accepted_message_whose_completion_failed_is_completed_later_and_not_resent() -> None:
    harness = DestinationHarness()
    harness.destination.add_deferred(harness.add("1", UP))
    harness.refuses_completion = True
    await asyncio.sleep(1)
    assert await harness.primary.answer() == ["1"]
    await asyncio.sleep(10)
    assert harness.completed == []
    harness.refuses_completion = False
    await asyncio.sleep(60)
    assert harness.completed == ["1"]
    assert harness.primary.sends == []
    harness.receive("2", UP)
    assert await harness.primary.answer() == ["2"]
    harness.destination.close()


@in_virtual_time
async def test_an_outage_of_a_fragment_with_no_message_in_the_batch_holds_up_the_entity() -> None:
    harness = DestinationHarness()
    harness.receive("1", DOWN)
    harness.receive("2", UP)
    await harness.primary.answer(down(9))
    assert harness.deferred == ["1", "2"]
    harness.destination.close()


def stored_in_part(*, stored: Sequence[int], unsure: Sequence[int]) -> PartlyStored:
    error = PartlyStored("some are stored")
    error.stored, error.unsure = stored, unsure
    return error


@in_virtual_time
async def test_q04_messages_of_a_batch_that_may_be_stored_are_in_doubt_until_they_are_settled() -> None:
    harness = DestinationHarness()
    for text, session_id in (("a", "1"), ("b", "2"), ("c", "3")):
        harness.receive(text, session_id)
    await asyncio.sleep(0.001)
    finishing = asyncio.ensure_future(harness.destination.finish())
    assert await harness.primary.answer(stored_in_part(stored=[0], unsure=[1])) == ["a", "b", "c"]
    await finishing
    assert harness.completed == ["a"]
    in_doubt = harness.destination.close()
    assert [(message.sequence_number, message.is_marked) for message in in_doubt] == [(2, True)], (
        "the third is not stored"
    )


@in_virtual_time
async def test_q19_a_message_that_was_deferred_twice_is_requested_once() -> None:
    harness = DestinationHarness()
    deferral = Deferral(harness, "backlog")
    harness.add("a", "1")
    harness.add("b", "1")
    for number in (2, 1, 2, 1):
        deferral.add(number)
    request = deferral.request()
    assert request.sequence_numbers == [1, 2], "a request that contains a number twice is refused as a whole"
    assert len(await deferral.messages_of(request) or ()) == 2


@in_virtual_time
async def test_q18_messages_behind_deferred_messages_of_their_session_keep_their_order() -> None:
    """After a takeover, messages of one session are deferred, and those of another session are not."""
    harness = DestinationHarness()
    for text, session_id in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")):
        harness.add(text, session_id)
    harness.destination.add_deferred(1)
    harness.destination.add_deferred(3)
    for number in (2, 4):
        harness.destination.submit(harness.parked_message(number))
    sent: list[str] = []
    while len(sent) < 4:
        sent += await harness.primary.answer()
    assert [text for text in sent if text.startswith("a")] == ["a1", "a2", "a3"]
