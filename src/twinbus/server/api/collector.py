"""The collection of answers from all processes of the server.

Owns the calls to other processes, and the figures that each process reported last. If a process does not answer, its
last figures are returned, and the request still succeeds. Figures of a process that never answered are missing. Old
figures are marked as incomplete, and the metrics page leaves them out: a counter must not fall if the next scrape
reaches a process that has older figures.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from twinbus.broker.ports.inspection import add_figures
from twinbus.server.api.process_calls import RESULT_TYPES, EntityFigures, GetFigures, ProcessCall
from twinbus.server.api.time_slices import TimeSlice
from twinbus.server.api.usage_rates import NO_RATES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinbus.broker.namespace import Queue, Subscription, Topic
    from twinbus.server.api.entity_index import EntityIndex
    from twinbus.server.api.process_status import ProcessStatus

ENTITIES_PER_CALL: Final = 500
MAX_READS: Final = 500
"""How many enqueued times of oldest messages one request may read from the stores of each process. Each call gets an
equal share, because the first calls would use up all reads otherwise, at every request."""
MAX_FIGURES_AGE_S: Final = 120.0
"""Older figures of a silent process are incomplete. Another process may have newer ones, and has shown them already."""
MIN_KEPT_FIGURES: Final = 100


class Peers(Protocol):
    """The processes of the server, as the API reaches them."""

    @property
    def number(self) -> int:
        """The number of this process."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all processes."""

    def owner_of(self, store: int) -> int:
        """Return the number of the process that owns a store."""

    async def call(self, number: int, request: bytes) -> bytes | None:
        """Send a request to another process; return None if it does not reply in time."""


class NoPeers:
    """The peers of the only process of a server: none."""

    number = 0
    numbers: Sequence[int] = (0,)

    def owner_of(self, store: int) -> int:  # noqa: ARG002
        """Return the number of this process."""
        return 0

    async def call(self, number: int, request: bytes) -> bytes | None:  # noqa: ARG002
        """Return None: there is no other process."""
        return None


class Collector:
    """Collects the status of all processes."""

    def __init__(self, process: ProcessStatus, index: EntityIndex) -> None:
        """Create a collector for a server with a single process."""
        self.peers: Peers = NoPeers()
        self._process = process
        self._index = index
        self._last_figures: dict[int, dict[int, tuple[EntityFigures, float]]] = {}
        """The last figures of all processes and when they were reported, by process and entity id."""

    @property
    def kept_count(self) -> int:
        """The number of last figures that are kept."""
        return sum(map(len, self._last_figures.values()))

    async def call(self, number: int, call: ProcessCall) -> Any:  # noqa: ANN401  # RESULT_TYPES has the type
        """Return the answer of one process; None if it does not reply in time."""
        if number == self.peers.number:
            return await self._process.handle(call)
        if number not in self.peers.numbers:
            return None
        reply = await self.peers.call(number, msgspec.msgpack.encode(call))
        return msgspec.msgpack.decode(reply, type=RESULT_TYPES[type(call)]) if reply is not None else None

    async def call_all(self, call: ProcessCall, excluded: Collection[int] = ()) -> dict[int, Any]:
        """Return the answers of all processes that reply in time, by process number."""
        numbers = [number for number in self.peers.numbers if number not in excluded]
        if len(numbers) == 1:  # without a task, which would wait for its turn
            answer = await self.call(numbers[0], call)
            return {numbers[0]: answer} if answer is not None else {}
        answers = await asyncio.gather(*[self.call(number, call) for number in numbers])
        return {number: answer for number, answer in zip(numbers, answers, strict=True) if answer is not None}

    async def figures(self, entities: Sequence[Queue | Topic | Subscription]) -> list[EntityFigures]:
        """Return the figures of entities, in the same order."""
        collected: list[EntityFigures] = []
        silent: set[int] = set()
        starts = range(0, len(entities), ENTITIES_PER_CALL)
        max_reads = max(1, MAX_READS // max(1, len(starts)))
        time_slice = TimeSlice()
        for start in starts:
            await time_slice.pause_if_over()
            chunk = entities[start : start + ENTITIES_PER_CALL]
            if len(self.peers.numbers) == 1:
                collected += await self._process.figures(chunk, max_reads)
                continue
            call = GetFigures([entity.entity_id for entity in chunk], max_reads)
            answers = await self.call_all(call, silent)
            silent |= set(self.peers.numbers) - set(answers)
            collected += self._merge(chunk, answers, silent)
        return collected

    def _merge(
        self,
        entities: Sequence[Queue | Topic | Subscription],
        answers: dict[int, list[EntityFigures]],
        silent: set[int],
    ) -> list[EntityFigures]:
        by_process = {number: {one.entity_id: one for one in answer} for number, answer in answers.items()}
        now_s = time.monotonic()
        for number, answer in answers.items():
            self._last_figures.setdefault(number, {}).update({one.entity_id: (one, now_s) for one in answer})
        self._forget_deleted()
        return [self._merge_entity(entity, by_process, silent) for entity in entities]

    def _merge_entity(
        self,
        entity: Queue | Topic | Subscription,
        by_process: dict[int, dict[int, EntityFigures]],
        silent: set[int],
    ) -> EntityFigures:
        found = [answer[entity.entity_id] for answer in by_process.values() if entity.entity_id in answer]
        owners = {self.peers.owner_of(part.store) for part in entity.parts}
        is_complete = True
        for number in owners & silent:
            last, reported_s = self._last_figures.get(number, {}).get(entity.entity_id, (None, 0.0))
            is_recent = time.monotonic() - reported_s <= MAX_FIGURES_AGE_S
            is_complete = is_complete and last is not None and is_recent
            if last is not None and last.figures is not None:
                figures = last.figures._replace(locked=0, is_available=False)
                found.append(EntityFigures(last.entity_id, figures, last.oldest_ms, 0, 0, last.accessed_ms, NO_RATES))
        reported = {number for number in owners if entity.entity_id in by_process.get(number, {})}
        if not found:
            return _missing(entity.entity_id)
        return _combine(found, is_complete=is_complete and owners <= reported | silent)

    def _forget_deleted(self) -> None:
        """Drop the last figures of deleted entities, if there are many."""
        for number, figures in self._last_figures.items():
            if len(figures) > 2 * self._index.count + MIN_KEPT_FIGURES:
                existing_ids = self._index.ids
                kept = {entity_id: one for entity_id, one in figures.items() if entity_id in existing_ids}
                self._last_figures[number] = kept


def _missing(entity_id: int) -> EntityFigures:
    return EntityFigures(entity_id, None, None, 0, 0, 0, NO_RATES, is_complete=False)


def _combine(found: list[EntityFigures], *, is_complete: bool) -> EntityFigures:
    figures = [one.figures for one in found if one.figures is not None]
    rates = [one.rates for one in found]
    return EntityFigures(
        found[0].entity_id,
        add_figures(figures) if figures else None,
        min((one.oldest_ms for one in found if one.oldest_ms is not None), default=None),
        sum([one.senders for one in found]),
        sum([one.receivers for one in found]),
        max([one.accessed_ms for one in found]),
        (sum([one[0] for one in rates]), sum([one[1] for one in rates]), sum([one[2] for one in rates])),
        is_complete,
    )
