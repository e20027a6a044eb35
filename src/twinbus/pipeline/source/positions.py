"""How far the log of an entity reaches, fragment by fragment.

Owns: the question, and what is in the answer. twinbus only: another Service Bus has no log to be read.
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
    """One fragment. Of one that is not available nothing else is known for sure."""

    fragment: int
    low_sequence_number: int
    """Below it there are no messages."""
    next_sequence_number: int
    """What the next message will have at least: whoever has read up to here has seen all that there ever will be."""
    message_count: int
    """Messages that are there."""
    is_available: bool
    purged_sequence_number: int = 0
    """The last message that was purged: deleted in bulk, and nobody received it."""


@dataclass(frozen=True, slots=True)
class Positions:
    """All of them."""

    entity_id: int
    """Another one when the entity was deleted and created again."""
    fragments: tuple[FragmentPosition, ...]

    @property
    def unavailable_fragments(self) -> list[int]:
        """The numbers of those that do not work now."""
        return [one.fragment for one in self.fragments if not one.is_available]


def read_positions(options: SourceOptions) -> Positions:
    """Ask an entity, on a connection of its own. Not for a thread on which a loop runs: `ask_positions` is."""
    import uvloop  # noqa: PLC0415  # Spark unpickles options in processes that ask nothing

    async def ask() -> Positions:
        async with connect(options) as factory:
            return await request_positions(factory, options)

    return uvloop.run(ask())


async def request_positions(factory: MessagingFactory, options: SourceOptions) -> Positions:
    """The same on a connection that there is."""
    path, limit_s = options.entity, options.operation_timeout_s

    async def ask() -> Any:  # noqa: ANN401  # a map, as AMQP has it
        return (await factory.request(path, "twinbus:fragments", {}, timeout_s=limit_s)).body

    try:
        body = await factory.run_with_retries(f"asking '{path}' for its fragments", ask, timeout_s=limit_s)
    except NotImplementedHere as error:
        raise PipelineError(
            f"{factory.address} cannot be read as a log: that is twinbus' own, and this is another Service Bus"
        ) from error
    found = [
        FragmentPosition(
            fragment=int(one["fragment"]),
            low_sequence_number=int(one.get("low-sequence-number", 0)),
            next_sequence_number=int(one.get("next-sequence-number", 0)),
            message_count=int(one.get("message-count", 0)),
            is_available=bool(one["is-available"]),
            purged_sequence_number=int(one.get("purged-sequence-number", 0)),
        )
        for one in body["fragments"]
    ]
    return Positions(int(body["entity-id"]), tuple(sorted(found, key=lambda one: one.fragment)))
