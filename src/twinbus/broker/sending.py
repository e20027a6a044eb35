"""Sending: what queues and topics do alike with messages that come in.

Owns: how full an entity may be, and whether its messages are looked up for duplicates. What they are by then is told by
`intake`, and what becomes of them by the entity's fragment.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.entity import MEGABYTE
from twinbus.model.description import fragment_size_mb
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic


def send(
    target: Queue | Topic,
    parcel: Parcel,
    answer: Answered,
    numbers: list[int] | None = None,
    beside: Callable[[], None] | None = None,
) -> None:
    """Store messages, all or none; `answer` hears when they are on disk. QuotaExceeded, StoreUnavailable.

    `numbers` gets their sequence numbers, by the time of the answer; 0 for a duplicate, which is not stored.
    `beside` is called when they are put into a batch, and may put something into the same.
    """
    target.check_sends()
    records, fragment = parcel.records, target.main
    if not records:
        fragment.ping(answer)
        return
    check_room(target, records)
    if target.terms.detects_duplicates and parcel.ids:  # what comes back to its own entity is no duplicate of itself
        fragment.duplicates.enqueue(records, parcel.ids, [] if numbers is None else numbers, answer, beside)
        return
    if fragment.is_busy:
        fragment.journal.check_takes_sends()
        fragment.check_loaded()
        size = sum([len(record) for record in records])
        fragment.in_order(partial(_enqueue, fragment, records, answer, numbers, beside), answer, size)
        return
    _enqueue(fragment, records, answer, numbers, beside)


def _enqueue(
    fragment: Fragment,
    records: list[bytes],
    answer: Answered,
    numbers: list[int] | None,
    beside: Callable[[], None] | None,
) -> None:
    first = fragment.enqueue(records, answer, beside)
    if numbers is not None:
        numbers.extend(range(first, first + len(records)))


def check_room(target: Queue | Topic, records: list[bytes]) -> None:
    """QuotaExceeded if these do not fit."""
    check_size(target, sum([len(record) for record in records]))


def check_size(target: Queue | Topic, size: int) -> None:
    """QuotaExceeded if so many bytes more do not fit."""
    limit = fragment_size_mb(target.description.max_size_mb) * MEGABYTE
    held = target.held_bytes()
    if held + size > limit:
        raise QuotaExceeded(
            f"The maximum entity size has been reached or exceeded for '{target.path}': it holds {held:,} bytes of "
            f"{limit:,}, and {size:,} more do not fit. Receive messages, also from its dead-letter queue, clear "
            "session states, or make the entity larger (MaxSizeInMegabytes)."
        )
