"""Offsets: how far a query has come in each fragment, as its checkpoint keeps it.

    {"version": 1, "entity": "orders", "entityId": 7, "fragments": {"0": 18, "1": 281474976710660}}

A number is that of the first message which was not read yet. Owns: this form, that one of a later version or of another
entity is refused, and what a loss of data is: the entity is another one of the same name, or its log ends before an
offset, or messages behind it were purged. A number that is missing is none: somebody had its message.
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
    """Of one entity."""

    entity: str
    entity_id: int
    fragments: dict[int, int]

    def to_json(self) -> dict[str, object]:
        """As Spark keeps it; always in the same order, since Spark compares texts."""
        numbers = {str(number): self.fragments[number] for number in sorted(self.fragments)}
        return {"version": VERSION, "entity": self.entity, "entityId": self.entity_id, "fragments": numbers}

    def with_fragments(self, fragments: Mapping[int, int]) -> Offsets:
        """The same, come so far."""
        return Offsets(self.entity, self.entity_id, dict(fragments))

    def limited_to(self, positions: Positions) -> Offsets:
        """Those before which all that is there was read: none of another entity, nor behind the end of a log.

        Of a fragment that is down it is not known where it ends.
        """
        is_same = self.entity_id == positions.entity_id
        ends = {one.fragment: one.next_sequence_number for one in positions.fragments if is_same and one.is_available}
        return self.with_fragments({number: at for number, at in self.fragments.items() if at <= ends.get(number, -1)})


def is_offsets(value: object) -> bool:
    """Whether something in a checkpoint looks like offsets of this source."""
    return isinstance(value, dict) and {"version", "entity", "entityId", "fragments"} <= value.keys()


def read_offsets(document: Mapping[str, object], entity: str) -> Offsets:
    """What a checkpoint has; PipelineError where it is of another entity, or not to be understood."""
    version = document.get("version")
    if version != VERSION:
        raise PipelineError(
            f"the checkpoint has offsets of version {version!r:.20}, and this twinbus reads version {VERSION}: use the "
            "twinbus that wrote it, or a newer one, or begin anew with another checkpointLocation"
        )
    named, numbers = str(document.get("entity")), document.get("fragments")
    if canonical_key(named) != canonical_key(entity):
        raise PipelineError(
            f"the checkpoint is of '{named}', and the query reads '{entity}': each needs its own checkpointLocation"
        )
    entity_id = document.get("entityId")
    if not isinstance(numbers, dict) or not isinstance(entity_id, int):
        raise PipelineError("the checkpoint's offsets are damaged: begin anew with another checkpointLocation")
    return Offsets(named, entity_id, {int(fragment): int(number) for fragment, number in numbers.items()})


def resolve_offsets(entity: str, positions: Positions, spec: OffsetSpec, *, default: str) -> Offsets:
    """Where a range begins or ends that a user asked for; fragments that are not named are at `default`."""
    named = spec if isinstance(spec, dict) else {}
    there = {one.fragment for one in positions.fragments}
    unknown = sorted(named.keys() - there)
    if unknown:
        raise PipelineError(f"'{entity}' has no fragment {unknown[0]}: it has {len(there)}, from number 0 on")
    usual = _EARLIEST if (spec if isinstance(spec, str) else default) == EARLIEST else _LATEST
    found = {}
    for one in positions.fragments:
        number = named.get(one.fragment, usual)
        if number == _EARLIEST:
            number = one.low_sequence_number
        elif number == _LATEST:
            number = one.next_sequence_number
        elif number >> FRAGMENT_SHIFT == 0:
            number += one.fragment << FRAGMENT_SHIFT
        found[one.fragment] = number
    return Offsets(entity, positions.entity_id, found)


def find_losses(start: Offsets, positions: Positions) -> list[str]:
    """What was lost since a query came so far; nothing, usually."""
    entity = start.entity
    if start.entity_id != positions.entity_id:
        ids = f"its id was {start.entity_id}, and is {positions.entity_id}"
        return [f"'{entity}' was deleted and created again ({ids}): what was not read before is gone"]
    found = []
    for one in positions.fragments:
        number = start.fragments.get(one.fragment, 0)
        if one.is_available and number > one.next_sequence_number:
            found.append(
                f"fragment {one.fragment} of '{entity}' ends before {one.next_sequence_number}, and was read "
                f"up to {number} already: the "
                "namespace was restored to an earlier state"
            )
        elif one.is_available and one.purged_sequence_number and one.purged_sequence_number >= number:
            found.append(
                f"fragment {one.fragment} of '{entity}' was purged up to {one.purged_sequence_number}, and "
                f"was read before {number} only"
            )
    return found


log: Final = logging.getLogger(__name__)


def check_losses(start: Offsets, positions: Positions, options: SourceOptions) -> None:
    """PipelineError if data was lost, unless the user said that this is no reason to end."""
    found = find_losses(start, positions)
    if found and options.fails_on_data_loss:
        raise PipelineError(
            f"data was lost: {'; '.join(found)}. The option failOnDataLoss=false goes on with what is left"
        )
    for one in found:
        log.warning("data was lost: %s", one)
