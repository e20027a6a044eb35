"""One destination of parked messages, answer by answer: what goes on, and what waits, when a fragment takes nothing."""

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

pytestmark = pytest.mark.interpreted  # parcels of our own
DOWN, UP, OTHER = key_for_fragment(5), key_for_fragment(2), key_for_fragment(5, 1)


class FakePrimary:
    """What a destination sends with: nothing is answered before the test says so."""

    path = "orders"
    failure = None

    def __init__(self) -> None:
        self.sends: list[tuple[list[str], asyncio.Future[object]]] = []

    async def link(self, _policy: object) -> FakePrimary:
        return self

    def send(self, payload: bytes, message_format: int = 0) -> asyncio.Future[object]:
        payloads = Message(payload).data if message_format == BATCH_FORMAT else [payload]
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.sends.append(([BrokeredMessage.decode(one).text for one in payloads], future))
        return future

    def withdraw(self, _future: object) -> bool:
        return False

    async def answer(self, error: ServiceBusError | None = None) -> list[str]:
        """Answer what was sent first; its texts."""
        await asyncio.sleep(0.001)
        texts, future = self.sends.pop(0)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await asyncio.sleep(0.001)
        return texts


class DestinationHarness:
    """A destination, the primary behind it, and what became of its messages in the backlog queue."""

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
        self._parcels: dict[int, DeferredParkedMessage] = {}
        self._texts: dict[uuid.UUID, str] = {}

    def receive(self, text: str, session_id: str) -> None:
        self.destination.submit(self._parcels[self.add(text, session_id)])

    def parked_message(self, number: int) -> DeferredParkedMessage:
        return self._parcels[number]

    def add(self, text: str, session_id: str) -> int:
        """One more in the backlog queue; its number."""
        payload = BrokeredMessage(text, session_id=session_id).encode(0)
        number = len(self._parcels) + 1
        lock = uuid.UUID(int=number)
        self._texts[lock] = text
        self._parcels[number] = DeferredParkedMessage(
            self._origin, RestoredMessage("orders", session_id, payload, number), lock
        )
        return number

    async def settle(self, status: str, locks: Sequence[uuid.UUID], _more: object) -> None:
        """As `DeferredMessages` does it."""
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
        return [self._parcels[number] for number in sequence_numbers]


def down(fragment: int = 5) -> FragmentUnavailable:
    error = FragmentUnavailable("it is down")
    error.fragment = fragment
    return error


@in_virtual_time
async def test_q18_what_waits_behind_a_message_for_a_fragment_that_is_down_waits_with_it() -> None:
    line = DestinationHarness()
    for number in range(MAX_BATCH_MESSAGES + 5):
        line.receive(f"{number}", DOWN)
    line.receive("up", UP)
    line.receive("other", OTHER)
    assert await line.primary.answer(down()) == [f"{number}" for number in range(MAX_BATCH_MESSAGES)]
    assert line.deferred == [*(f"{number}" for number in range(MAX_BATCH_MESSAGES + 5)), "other"]
    assert await line.primary.answer() == ["up"]
    assert line.primary.sends == []
    line.destination.close()


@in_virtual_time
async def test_q19_what_comes_later_is_deferred_behind_it_and_all_come_back_in_order() -> None:
    line = DestinationHarness()
    line.receive("1", DOWN)
    line.receive("2", UP)
    assert await line.primary.answer(down()) == ["1", "2"]
    line.receive("3", DOWN)
    line.receive("4", UP)
    assert await line.primary.answer() == ["2"]
    assert await line.primary.answer() == ["4"]
    assert line.deferred == ["1", "3"]
    await asyncio.sleep(1)
    assert await line.primary.answer() == ["1"], "it is a probe"
    assert await line.primary.answer() == ["3"]
    assert line.completed == ["2", "4", "1", "3"]
    line.receive("5", DOWN)
    assert await line.primary.answer() == ["5"]
    line.destination.close()


@in_virtual_time
async def test_q18_a_session_that_has_messages_on_their_way_goes_on_behind_these() -> None:
    line = DestinationHarness()
    line.receive("1", DOWN)
    await asyncio.sleep(0.001)
    line.receive("2", OTHER)  # waits for the answer to the first, or for more
    for number in range(MAX_BATCH_MESSAGES):
        line.receive(f"up {number}", f"{number}")  # makes a batch of it
    await asyncio.sleep(0.001)
    first, second = line.primary.sends
    second[1].set_exception(down())
    await asyncio.sleep(0.001)
    assert line.deferred[0] == "2"
    line.receive("3", DOWN)
    assert "3" not in line.deferred
    first[1].set_result(None)
    await asyncio.sleep(0.001)
    assert any("3" in texts for texts, _ in line.primary.sends), "its session is not held up: what was before has gone"
    line.destination.close()


@in_virtual_time
async def test_what_a_batch_was_stored_of_is_completed_and_the_rest_sent_again() -> None:
    line = DestinationHarness()
    for number in range(4):
        line.receive(f"{number}", DOWN if number % 2 else UP)
    error = PartlyStored("in part")
    error.stored = [0, 1]
    assert await line.primary.answer(error) == ["0", "2", "1", "3"]
    assert line.completed == ["0", "2"]
    assert await line.primary.answer(down()) == ["1", "3"]
    assert line.deferred == ["1", "3"]
    line.destination.close()


@in_virtual_time
async def test_q17_what_was_accepted_and_could_not_be_completed_is_completed_later_and_not_sent_again() -> None:
    line = DestinationHarness()
    line.destination.add_deferred(line.add("1", UP))
    line.refuses_completion = True
    await asyncio.sleep(1)
    assert await line.primary.answer() == ["1"]
    await asyncio.sleep(10)
    assert line.completed == []
    line.refuses_completion = False
    await asyncio.sleep(60)
    assert line.completed == ["1"]
    assert line.primary.sends == []
    line.receive("2", UP)
    assert await line.primary.answer() == ["2"]
    line.destination.close()


@in_virtual_time
async def test_a_fragment_that_nothing_of_a_batch_leads_to_holds_up_the_entity() -> None:
    line = DestinationHarness()
    line.receive("1", DOWN)
    line.receive("2", UP)
    await line.primary.answer(down(9))
    assert line.deferred == ["1", "2"]
    line.destination.close()


def stored_in_part(*, stored: Sequence[int], unsure: Sequence[int]) -> PartlyStored:
    error = PartlyStored("some are stored")
    error.stored, error.unsure = stored, unsure
    return error


@in_virtual_time
async def test_q04_what_may_be_stored_of_a_batch_is_in_doubt_until_it_is_settled() -> None:
    line = DestinationHarness()
    for text, session_id in (("a", "1"), ("b", "2"), ("c", "3")):
        line.receive(text, session_id)
    await asyncio.sleep(0.001)
    finishing = asyncio.ensure_future(line.destination.finish())
    assert await line.primary.answer(stored_in_part(stored=[0], unsure=[1])) == ["a", "b", "c"]
    await finishing
    assert line.completed == ["a"]
    in_doubt = line.destination.close()
    assert [(parcel.sequence_number, parcel.is_marked) for parcel in in_doubt] == [(2, True)], "the third is not stored"


@in_virtual_time
async def test_q19_a_message_that_was_deferred_twice_is_asked_for_once() -> None:
    line = DestinationHarness()
    deferral = Deferral(line, "backlog")
    line.add("a", "1")
    line.add("b", "1")
    for number in (2, 1, 2, 1):
        deferral.add(number)
    request = deferral.request()
    assert request.sequence_numbers == [1, 2], "a request with a number twice is refused as a whole"
    assert len(await deferral.messages_of(request) or ()) == 2


@in_virtual_time
async def test_q18_what_waits_behind_deferred_messages_goes_in_its_place_among_them() -> None:
    """A takeover: of one session all is deferred, of another one nothing."""
    line = DestinationHarness()
    for text, session_id in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")):
        line.add(text, session_id)
    line.destination.add_deferred(1)
    line.destination.add_deferred(3)
    for number in (2, 4):
        line.destination.submit(line.parked_message(number))
    sent: list[str] = []
    while len(sent) < 4:
        sent += await line.primary.answer()
    assert [text for text in sent if text.startswith("a")] == ["a1", "a2", "a3"]
