"""Offsets: the position of a query in each fragment, as stored in its checkpoint.

    {"version": 1, "entity": "orders", "entityId": 7, "fragments": {"0": 18, "1": 281474976710660}}

An offset is the sequence number of the first message that was not read yet. Owns this format, the refusal of offsets
with a later version or for another entity, and the detection of data loss: the entity was recreated, its log ends
before an offset, or unread messages were purged. A missing sequence number is not a loss: its message was received.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.description import FRAGMENT_SHIFT
from twinbus.model.path import canonical_key
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.pipeline.source.options import OffsetSpec, SourceOptions
    from twinbus.pipeline.source.positions import Positions

VERSION: Final = 1
_LATEST: Final = -1
_EARLIEST: Final = -2


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets for one entity."""

    entity: str
    entity_id: int
    fragments: dict[int, int]

    def to_json(self) -> dict[str, object]:
        """Return the offsets as JSON for Spark. Fragments are sorted, because Spark compares offsets as text."""
        numbers = {str(number): self.fragments[number] for number in sorted(self.fragments)}
        return {"version": VERSION, "entity": self.entity, "entityId": self.entity_id, "fragments": numbers}

    def with_fragments(self, fragments: Mapping[int, int]) -> Offsets:
        """Return offsets for the same entity with other positions."""
        return Offsets(self.entity, self.entity_id, dict(fragments))

    def limited_to(self, positions: Positions) -> Offsets:
        """Drop offsets that must not be completed, because the entity was recreated or its log ends earlier.

        Offsets for unavailable fragments are also dropped, because the ends of these fragments' logs are unknown.
        """
        is_same = self.entity_id == positions.entity_id
        ends = {
            position.fragment: position.next_sequence_number
            for position in positions.fragments
            if is_same and position.is_available
        }
        return self.with_fragments({number: at for number, at in self.fragments.items() if at <= ends.get(number, -1)})


def is_offsets(value: object) -> bool:
    """Return whether a value in a checkpoint looks like offsets from this source."""
    return isinstance(value, dict) and {"version", "entity", "entityId", "fragments"} <= value.keys()


def read_offsets(document: Mapping[str, object], entity: str) -> Offsets:
    """Parse offsets from a checkpoint. Raise PipelineError if the offsets are invalid or for another entity."""
    version = document.get("version")
    if version != VERSION:
        raise PipelineError(
            f"the checkpoint has offsets of version {version!r:.20}; this twinbus reads version {VERSION}: use the "
            "twinbus that wrote it, or a newer one, or start again with another checkpointLocation"
        )
    checkpoint_entity, numbers = str(document.get("entity")), document.get("fragments")
    if canonical_key(checkpoint_entity) != canonical_key(entity):
        raise PipelineError(
            f"the checkpoint is of '{checkpoint_entity}'; the query reads '{entity}': use another checkpointLocation"
        )
    entity_id = document.get("entityId")
    if not isinstance(numbers, dict) or not isinstance(entity_id, int):
        raise PipelineError("the checkpoint's offsets are damaged: start again with another checkpointLocation")
    return Offsets(checkpoint_entity, entity_id, {int(fragment): int(number) for fragment, number in numbers.items()})


def resolve_offsets(entity: str, positions: Positions, spec: OffsetSpec, *, default: str) -> Offsets:
    """Return the offsets that the user asked for. Fragments that are not in `spec` get `default`."""
    numbers = spec if isinstance(spec, dict) else {}
    fragments = {position.fragment for position in positions.fragments}
    unknown = sorted(numbers.keys() - fragments)
    if unknown:
        raise PipelineError(f"'{entity}' has no fragment {unknown[0]}: it has {len(fragments)}, numbered from 0")
    default_number = _EARLIEST if (spec if isinstance(spec, str) else default) == EARLIEST else _LATEST
    resolved = {}
    for position in positions.fragments:
        number = numbers.get(position.fragment, default_number)
        if number == _EARLIEST:
            number = position.low_sequence_number
        elif number == _LATEST:
            number = position.next_sequence_number
        elif number >> FRAGMENT_SHIFT == 0:
            number += position.fragment << FRAGMENT_SHIFT
        resolved[position.fragment] = number
    return Offsets(entity, positions.entity_id, resolved)


def find_losses(start: Offsets, positions: Positions) -> list[str]:
    """Describe the data lost since a query was at `start`. Return an empty list if nothing was lost."""
    entity = start.entity
    if start.entity_id != positions.entity_id:
        ids = f"its id was {start.entity_id} and is now {positions.entity_id}"
        return [f"'{entity}' was deleted and created again ({ids}): its unread messages are gone"]
    losses = []
    for position in positions.fragments:
        number = start.fragments.get(position.fragment, 0)
        if position.is_available and number > position.next_sequence_number:
            losses.append(
                f"fragment {position.fragment} of '{entity}' ends before {position.next_sequence_number}, but was "
                f"already read up to {number}: the "
                "namespace was restored to an earlier state"
            )
        elif position.is_available and position.purged_sequence_number and position.purged_sequence_number >= number:
            losses.append(
                f"fragment {position.fragment} of '{entity}' was purged up to {position.purged_sequence_number}, but "
                f"was read only before {number}"
            )
    return losses


log: Final = logging.getLogger(__name__)


def check_losses(start: Offsets, positions: Positions, options: SourceOptions) -> None:
    """Raise PipelineError if data was lost. With failOnDataLoss=false, log a warning instead."""
    losses = find_losses(start, positions)
    if losses and options.fails_on_data_loss:
        raise PipelineError(
            f"data was lost: {'; '.join(losses)}. Set failOnDataLoss=false to continue with the remaining messages"
        )
    for loss in losses:
        log.warning("data was lost: %s", loss)
