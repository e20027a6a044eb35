"""The blocking inspector finds, resubmits, moves and deletes messages."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until
from twinbus.client.sync import BrokeredMessage, MessagingFactory
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

FAR_FUTURE = dt.datetime(2096, 1, 1, tzinfo=dt.UTC)


def test_messages_are_found_moved_resubmitted_and_deleted(factory: MessagingFactory, server: ServerProcess) -> None:
    queue, other = factory.create_queue_client(server.create_queue()), server.create_queue()
    queue.send_batch(BrokeredMessage(f"{number}", properties={"price": number}) for number in range(150))
    for _ in range(3):
        message = queue.receive(20)
        assert message is not None
        queue.dead_letter(message, "late")
    inspector = factory.create_message_inspector(queue.path)
    dead = factory.create_message_inspector(f"{queue.path}/$DeadLetterQueue")
    assert [message.text for message in inspector.search("price > 146")] == ["147", "148", "149"]
    assert [message.text for message in inspector.search(max_count=2)] == ["3", "4"]
    assert [message.text for message in itertools.islice(inspector.search(), 1)] == ["3"]
    assert [message.text for message in dead.peek()] == ["0", "1", "2"]
    assert [(each.reason, each.count) for each in dead.summarize_dead_letters().reasons] == [("late", 3)]
    assert inspector.move(other, filter="price >= 100").done_count == 50
    wait_until(lambda: server.message_counts(other) == (50, 0))
    reports: list[int] = []
    assert dead.resubmit(filter="price < 2", on_progress=lambda now: reports.append(now.done_count)).done_count == 2
    assert reports[-1] == 2
    [letter] = dead.peek()
    assert dead.resubmit_edited(letter.sequence_number, BrokeredMessage("new")) > 0
    number = queue.schedule(BrokeredMessage("later"), FAR_FUTURE)
    number = inspector.change_scheduled(number, when=FAR_FUTURE + dt.timedelta(days=1))
    inspector.cancel_scheduled(number)
    assert inspector.delete(filter="price < 50").done_count == 49
    assert inspector.purge().done_count == 51
    assert server.message_counts(queue.path) == (0, 0)


def test_an_error_of_a_search_is_raised_where_it_is_iterated(factory: MessagingFactory, server: ServerProcess) -> None:
    inspector = factory.create_message_inspector(server.create_queue())
    with pytest.raises(InvalidArgument, match="filter"):
        list(inspector.search("price >"))
