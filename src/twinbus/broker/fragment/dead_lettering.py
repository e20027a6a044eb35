"""Dead-lettering: moving messages from a fragment to its dead-letter queue.

Owns: the change of a message that becomes a dead letter, and the reasons that the broker gives: the maximum delivery
count was reached, or the message expired. A receiver's own reason comes through `settlement`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.message_record import (
    ACTIVE_STATE,
    NEVER_MS,
    change_record,
    make_record,
    parse_record,
    with_original_sequence,
)
from twinbus.broker.ports.settlement import dead_letter_properties
from twinbus.model.callbacks import ignore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock

DEAD_LETTER_SPARE_BYTES: Final = 512
"""The bytes that dead-lettering may add to a message even if the entity or the disk is full, so that receivers can
continue with other messages. A message is dead-lettered only once."""
DEAD_LETTER_PROPERTY_NAMES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
"""The properties that dead-lettering adds to a message."""


def move_to_dead_letters(fragment: Fragment, lock: Lock, record: bytes) -> None:
    """Move one message to the dead-letter queue, in the batch of this turn."""
    dead_letters = fragment.dead_letters
    assert dead_letters is not None
    fragment.remove([lock], ignore)
    fields = with_original_sequence(parse_record(record), lock.sequence)
    fields = fields._replace(state=ACTIVE_STATE, due_ms=NEVER_MS, session_id=None, shared_body=0)
    if fragment.redelivery.may_have_been_delivered(lock.sequence):
        fields = fields._replace(delivery_count=max(1, fields.delivery_count))
    dead_letters.store_moved(make_record(fields))


def dead_letter_exhausted(fragment: Fragment, lock: Lock, record: bytes, max_delivery_count: int) -> None:
    """Move a message that reached the maximum delivery count to the dead-letter queue."""
    text = f"Message could not be consumed after {max_delivery_count} delivery attempts."
    properties = dead_letter_properties("MaxDeliveryCountExceeded", text)
    move_to_dead_letters(fragment, lock, change_record(record, properties=properties))


def dead_letter_expired(fragment: Fragment, messages: list[tuple[Lock, bytes]]) -> None:
    """Move expired messages to the dead-letter queue."""
    properties = dead_letter_properties("TTLExpiredException", "The message expired and was dead lettered.")
    for lock, record in [(lock, change_record(record, properties=properties)) for lock, record in messages]:
        move_to_dead_letters(fragment, lock, record)


def without_dead_letter_reasons(properties: Mapping[str, object] | None) -> dict[str, object]:
    """Return properties without dead-letter reasons: a dead letter keeps its first reason."""
    return {name: value for name, value in (properties or {}).items() if name not in DEAD_LETTER_PROPERTY_NAMES}
