"""Positions of an entity's fragments: the first and next sequence number of each.

Owns the request to the namespace and the parsing of its response. Only twinbus supports this request: other Service Bus
implementations do not expose a readable log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinbus.model.errors import NotImplementedHere
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import connect

if TYPE_CHECKING:
    from twinbus.client.factory import MessagingFactory
    from twinbus.pipeline.source.options import SourceOptions


@dataclass(frozen=True, slots=True)
class FragmentPosition:
    """Position of one fragment. If the fragment is unavailable, its other values may be wrong."""

    fragment: int
    low_sequence_number: int
    """Lower bound of the sequence numbers of existing messages."""
    next_sequence_number: int
    """Lower bound of all future sequence numbers, and exclusive upper bound of all existing sequence numbers."""
    message_count: int
    """Number of messages in the fragment."""
    is_available: bool
    purged_sequence_number: int = 0
    """Sequence number of the last message that was purged, that is, deleted in bulk without being received."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of all fragments of an entity."""

    entity_id: int
    """Id of the entity, which changes when the entity is deleted and created again."""
    fragments: tuple[FragmentPosition, ...]

    @property
    def unavailable_fragments(self) -> list[int]:
        """Numbers of the unavailable fragments."""
        return [position.fragment for position in self.fragments if not position.is_available]


def read_positions(options: SourceOptions) -> Positions:
    """Request the positions on a new connection. On a thread with a running loop, use `request_positions`."""
    import uvloop  # noqa: PLC0415  # Spark unpickles options in processes that send no request

    async def request() -> Positions:
        async with connect(options) as factory:
            return await request_positions(factory, options)

    return uvloop.run(request())


async def request_positions(factory: MessagingFactory, options: SourceOptions) -> Positions:
    """Request the positions on the factory's connection."""
    path, limit_s = options.entity, options.operation_timeout_s

    async def request() -> Any:  # noqa: ANN401  # a decoded AMQP map
        return (await factory.request(path, "twinbus:fragments", {}, timeout_s=limit_s)).body

    try:
        body = await factory.run_with_retries(f"asking '{path}' for its fragments", request, timeout_s=limit_s)
    except NotImplementedHere as error:
        raise PipelineError(f"{factory.address} cannot be read as a log: it is not a twinbus namespace") from error
    positions = [
        FragmentPosition(
            fragment=int(fragment["fragment"]),
            low_sequence_number=int(fragment.get("low-sequence-number", 0)),
            next_sequence_number=int(fragment.get("next-sequence-number", 0)),
            message_count=int(fragment.get("message-count", 0)),
            is_available=bool(fragment["is-available"]),
            purged_sequence_number=int(fragment.get("purged-sequence-number", 0)),
        )
        for fragment in body["fragments"]
    ]
    return Positions(int(body["entity-id"]), tuple(sorted(positions, key=lambda position: position.fragment)))
