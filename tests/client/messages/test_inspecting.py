"""An inspector finds messages with SQL filters, and resubmits, moves and deletes them without receiving them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until
from twinbus.client import BrokeredMessage, BulkProgress, MessageInspector, QueueClient
from twinbus.client.errors import ConnectionFailed, FactoryFaulted, UnknownAnswer
from twinbus.client.events import SettledInBulk
from twinbus.model.errors import InvalidArgument, MessageNotFound, NotImplementedHere

if TYPE_CHECKING:
    from tests.client.bus import Bus

FAR_FUTURE = dt.datetime(2096, 1, 1, tzinfo=dt.UTC)
PARTITIONED = {"EnablePartitioning": "true"}


def orders(*numbers: int, session_id: str | None = None) -> list[BrokeredMessage]:
    return [
        BrokeredMessage(
            f"order {number}", message_id=str(number), properties={"price": number * 10}, session_id=session_id
        )
        for number in numbers
    ]


async def send(queue: QueueClient, *numbers: int) -> None:
    for message in orders(*numbers):
        await queue.send(message)


async def dead_letter(queue: QueueClient, count: int, reason: str = "broken") -> None:
    for _ in range(count):
        message = await queue.receive()
        assert message is not None
        await queue.dead_letter(message, reason, "the address is missing")


def inspector_of(bus: Bus, path: str, *, dead_letters: bool = False) -> MessageInspector:
    return bus.shared_factory.create_message_inspector(f"{path}/$DeadLetterQueue" if dead_letters else path)


async def found(inspector: MessageInspector, *arguments: str, **options: object) -> list[str]:
    return [str(message.message_id) async for message in inspector.search(*arguments, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("elements", [{}, PARTITIONED], ids=["plain", "partitioned"])
async def test_a_search_finds_all_matching_messages_over_many_pages(bus: Bus, elements: dict[str, str]) -> None:
    queue = bus.create_queue(**elements)
    await queue.send_batch(orders(*range(150)))
    inspector = inspector_of(bus, queue.path)
    assert sorted(await found(inspector, "price >= 200"), key=int) == [str(number) for number in range(20, 150)]
    pages = [page async for page in inspector.search_pages("price < 30", page_size=2)]
    assert sum(page.scanned_count for page in pages) == 150
    assert len(pages) >= 2
    assert len(await found(inspector, max_count=7)) == 7


async def test_a_search_can_be_limited_to_a_session(bus: Bus) -> None:
    queue = bus.create_queue(RequiresSession="true")
    for session, number in (("a", 1), ("it's", 2), ("it's", 3)):
        await queue.send(orders(number, session_id=session)[0])
    inspector = inspector_of(bus, queue.path)
    assert await found(inspector, session_id="it's") == ["2", "3"]
    assert await found(inspector, "price = 10 OR price = 30", session_id="it's") == ["3"]


async def test_a_search_does_not_return_messages_that_arrive_after_it_began(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, 1, 2, 3)
    seen = []
    async for page in inspector_of(bus, queue.path).search_pages(page_size=1):
        seen += [message.message_id for message in page.messages]
        await send(queue, 100 + len(seen))
        assert len(seen) <= 3
    assert seen == ["1", "2", "3"]


@pytest.mark.parametrize("elements", [{}, PARTITIONED], ids=["plain", "partitioned"])
async def test_dead_letters_are_resubmitted_by_filter(bus: Bus, elements: dict[str, str]) -> None:
    queue = bus.create_queue(**elements)
    await send(queue, *range(12))
    await dead_letter(queue, 12)
    inspector = inspector_of(bus, queue.path, dead_letters=True)
    reports: list[int] = []
    progress = await inspector.resubmit(filter="price >= 60", on_progress=lambda now: reports.append(now.done_count))
    assert (progress.done_count, progress.skipped_count, progress.scanned_count) == (6, 0, 12)
    assert reports[-1] == 6
    assert bus.message_counts(queue) == (6, 6)
    assert (await inspector.resubmit()).done_count == 6
    assert bus.message_counts(queue) == (12, 0)


async def test_a_client_that_has_used_nothing_else_may_resubmit(bus: Bus) -> None:
    """It needs a token for the queue, too, because the message is sent there."""
    queue = bus.create_queue()
    await send(queue, 1, 2)
    await dead_letter(queue, 2)
    for index in range(2):
        inspector = bus.factory().create_message_inspector(f"{queue.path}/$DeadLetterQueue")
        if index:
            [letter] = await inspector.peek()
            await inspector.resubmit_edited(letter.sequence_number, letter.clone())
        else:
            assert (await inspector.resubmit(max_count=1)).done_count == 1
    assert bus.message_counts(queue) == (2, 0)


async def test_locked_messages_are_skipped_and_all_others_are_resubmitted(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, *range(9))
    await dead_letter(queue, 9)
    receiver = queue.dead_letter_receiver()
    locked = await receiver.receive_batch(2)
    numbers = [message.sequence_number for message in locked]
    progress = await inspector_of(bus, queue.path, dead_letters=True).resubmit()
    assert sorted(progress.skipped) == sorted(numbers)
    assert progress.done_count == 9 - len(numbers)
    assert bus.message_counts(queue) == (9 - len(numbers), len(numbers))


async def test_resubmitting_all_ends_although_the_messages_are_dead_lettered_again(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, *range(4))
    await dead_letter(queue, 4)
    inspector = inspector_of(bus, queue.path, dead_letters=True)
    total = 0
    async for page in inspector.search_pages(page_size=1):
        for message in page.messages:
            total += (await inspector.resubmit([message.sequence_number])).done_count
            await dead_letter(queue, 1)
    assert total == 4


async def test_an_edited_dead_letter_has_the_new_content(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, 1)
    await dead_letter(queue, 1)
    inspector = inspector_of(bus, queue.path, dead_letters=True)
    [letter] = await inspector.peek()
    edited = BrokeredMessage("corrected", message_id=letter.message_id, properties={"price": 1})
    number = await inspector.resubmit_edited(letter.sequence_number, edited)
    [message] = await inspector_of(bus, queue.path).peek()
    assert (message.sequence_number, message.text, message.properties) == (number, "corrected", {"price": 1})


async def test_messages_move_to_another_queue_by_filter(bus: Bus) -> None:
    source, destination = bus.create_queue(**PARTITIONED), bus.create_queue()
    await send(source, *range(10))
    progress = await inspector_of(bus, source.path).move(destination.path, filter="price < 30")
    assert (progress.done_count, progress.skipped_count) == (3, 0)
    wait_until(lambda: bus.message_counts(destination) == (3, 0))
    assert sorted(await found(inspector_of(bus, destination.path))) == ["0", "1", "2"]
    assert bus.message_counts(source) == (7, 0)


async def test_messages_are_deleted_by_number_by_filter_and_by_state(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, *range(1, 7))
    number = await queue.schedule(orders(7)[0], FAR_FUTURE)
    inspector = inspector_of(bus, queue.path)
    progress = await inspector.delete([1, 999])
    assert (progress.done_count, progress.skipped) == (1, [999])
    assert (await inspector.delete(filter="price = 20 OR price = 70")).done_count == 2
    assert await found(inspector) == ["3", "4", "5", "6"]
    with pytest.raises(MessageNotFound):
        await inspector.cancel_scheduled(number)
    with pytest.raises(InvalidArgument, match="purge deletes all"):
        await inspector.delete()
    assert (await inspector.purge()).done_count == 4
    assert await found(inspector) == []


async def test_dead_letters_are_counted_by_reason(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, *range(6))
    for reason, count in (("late", 2), ("broken", 4)):
        await dead_letter(queue, count, reason)
    inspector = inspector_of(bus, queue.path, dead_letters=True)
    summary = await inspector.summarize_dead_letters()
    assert [(each.reason, each.count, each.description) for each in summary.reasons] == [
        ("broken", 4, "the address is missing"),
        ("late", 2, "the address is missing"),
    ]
    assert summary.is_complete
    first = await inspector.summarize_dead_letters(3)
    assert (first.count, first.is_complete) == (3, False)


async def test_after_a_failure_the_caller_knows_what_was_done_and_a_repetition_does_the_rest(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the inspector is lost after two of four requests."""
    monkeypatch.setattr("twinbus.client.inspector.message_inspector.PAGE_SIZE", 2)
    queue = bus.create_queue()
    await send(queue, *range(8))
    await dead_letter(queue, 8)
    factory = bus.factory()
    inspector = factory.create_message_inspector(f"{queue.path}/$DeadLetterQueue")
    numbers = [message.sequence_number async for message in inspector.search()]
    reports: list[int] = []

    def report(progress: BulkProgress) -> None:
        reports.append(progress.done_count)
        if progress.done_count == 4:
            factory.abort(ConnectionFailed("the network is down"))

    with pytest.raises(FactoryFaulted):
        await inspector.resubmit(numbers, on_progress=report)
    assert reports == [2, 4]
    assert bus.message_counts(queue) == (4, 4)
    progress = await inspector_of(bus, queue.path, dead_letters=True).resubmit(numbers)
    assert (progress.done_count, progress.skipped) == (4, numbers[:4])
    assert bus.message_counts(queue) == (8, 0)


# --- scheduled messages -----------------------------------------------------------------------------------------------


async def test_a_scheduled_message_gets_another_time_and_keeps_its_content(bus: Bus) -> None:
    queue = bus.create_queue()
    number = await queue.schedule(orders(1)[0], FAR_FUTURE)
    inspector = inspector_of(bus, queue.path)
    later = FAR_FUTURE + dt.timedelta(days=1)
    new_number = await inspector.change_scheduled(number, when=later)
    [message] = [message async for message in inspector.search(state="scheduled")]
    assert (message.sequence_number, message.scheduled_enqueue_time_utc) == (new_number, later)
    assert (message.text, message.message_id, message.properties) == ("order 1", "1", {"price": 10})


async def test_a_scheduled_message_that_becomes_active_while_it_is_changed_is_kept_once(bus: Bus) -> None:
    """The listener cancels the old message, as its activation would, after the new one is scheduled."""
    queue = bus.create_queue()
    number = await queue.schedule(orders(1)[0], FAR_FUTURE)
    inspector = inspector_of(bus, queue.path)
    other = bus.factory()

    schedule = inspector._sender.schedule  # noqa: SLF001  # to interleave another client

    async def schedule_and_interrupt(message: BrokeredMessage, when: dt.datetime) -> int:
        new_number = await schedule(message, when)
        await other.create_message_sender(queue.path).cancel_scheduled(number)
        return new_number

    inspector._sender.schedule = schedule_and_interrupt  # type: ignore[method-assign]  # noqa: SLF001
    with pytest.raises(MessageNotFound, match="became active"):
        await inspector.change_scheduled(number, when=FAR_FUTURE)
    assert await found(inspector) == []


async def test_changing_a_message_that_is_not_scheduled_is_refused(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, 1)
    with pytest.raises(MessageNotFound, match="no scheduled message 1"):
        await inspector_of(bus, queue.path).change_scheduled(1, when=FAR_FUTURE)


# --- servers without these operations ---------------------------------------------------------------------------------


async def test_a_server_without_an_operation_is_named_in_the_error(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses an unknown operation, as another server refuses those of twinbus."""
    queue = bus.create_queue()
    inspector = inspector_of(bus, queue.path)
    request = inspector._request  # noqa: SLF001

    monkeypatch.setattr(inspector, "_request", lambda operation, body, **_: request(f"{operation}-unknown", body))
    with pytest.raises(NotImplementedHere, match="does not support twinbus:search, an operation of twinbus"):
        await found(inspector)


async def test_a_search_that_a_server_never_ends_is_an_error(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores the position would send the first page for ever."""
    queue = bus.create_queue()
    await send(queue, 1, 2)
    inspector = inspector_of(bus, queue.path)
    request = inspector._request  # noqa: SLF001

    async def request_first_page(operation: str, body: dict[str, object], **_: object) -> object:
        return await request(operation, {**body, "from-sequence-number": 0, "message-count": 1})

    monkeypatch.setattr(inspector, "_request", request_first_page)
    with pytest.raises(UnknownAnswer, match="does not get beyond message 2"):
        await found(inspector)


async def test_deletions_are_published_as_events(bus: Bus) -> None:
    queue = bus.create_queue()
    await send(queue, 1, 2)
    counts: list[int] = []
    bus.shared_factory.events.listen(lambda event: counts.append(event.count), {SettledInBulk})
    assert await inspector_of(bus, queue.path).delete([1, 2]) == BulkProgress(done_count=2)
    assert counts == [2]
