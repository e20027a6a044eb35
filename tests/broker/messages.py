"""Messages that tests send, and helpers that read received messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.amqp.message import Header, Properties, Section, build, data
from twinbus.amqp.types import Timestamp
from twinbus.model.annotations import PARTITION_KEY, SCHEDULED_TIME
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from twinbus.amqp.message import Message


def message(
    body: bytes = b"",
    *,
    message_id: str = "m",
    session: str | None = None,
    key: str | None = None,
    ttl_ms: int | None = None,
    due_ms: int | None = None,
    content_type: str | None = None,
    subject: str | None = None,
    **properties: Any,  # noqa: ANN401  # application properties are of any type
) -> bytes:
    """Encode a message; `properties` are its application properties."""
    annotations: dict[str, object] = {PARTITION_KEY: key} if key is not None else {}
    if due_ms is not None:
        annotations[SCHEDULED_TIME] = Timestamp(due_ms)
    return build(
        header=Header(ttl=ttl_ms) if ttl_ms is not None else None,
        message_annotations=annotations or None,
        properties=Properties(message_id=message_id, group_id=session, content_type=content_type, subject=subject),
        application_properties=properties or None,
        body=data(body),
    )


def key_for_fragment(fragment: int, salt: int = 0) -> str:
    """Return a partition key that hashes to a fragment."""
    return next(
        name for name in (f"{salt}-{number}" for number in range(10_000)) if fragment_of(name.encode()) == fragment
    )


def property_of(received: Message, name: str) -> object:
    return received.lookup(Section.APPLICATION_PROPERTIES, name)


def annotation_of(received: Message, name: str) -> Any:  # noqa: ANN401  # annotations are of any type
    return received.lookup(Section.MESSAGE_ANNOTATIONS, name)
