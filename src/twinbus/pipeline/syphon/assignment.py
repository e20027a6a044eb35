"""What a task is to do: which backlog queues, between which namespaces, and whom it tells.

Owns: how backlog queues are spread over tasks, and the epochs with which they are claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.blame import NOT_FOUND_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.pipeline.syphon.pair import Pair

ATTEMPTS: Final = 100
"""More than Spark makes of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the driver listens."""

    host: str
    port: int
    token: str = field(repr=False)
    """What shows that a task is one of this driver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Of one task. It travels inside a partition, so that no plan and no log shows it."""

    pair: Pair
    queues: tuple[str, ...]
    driver: Address
    round: int
    group: int
    """The place of this task among those of its round."""
    started_ms: int
    """When the driver began, by its clock: the age of this syphon among others."""
    poll_s: float
    deduct: bool
    journal_dir: str | None
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    locks_ms: Mapping[str, int] = field(default_factory=dict)
    """How long each backlog queue locks messages, in milliseconds."""

    def epoch(self, attempt: int) -> int:
        """Newer than any earlier task of this driver, and no newer than it was when the driver began.

        So a task that is started again takes its queues from the one that was lost, whether or not that is known to be
        gone; and of several syphons the one that was started last has the queues (Q17), not the one with the youngest
        task.
        """
        return self.started_ms + ATTEMPTS * self.round + min(attempt, ATTEMPTS - 1)


def spread(parked: Mapping[str, int], tasks: int) -> list[tuple[str, ...]]:
    """Backlog queues by task: each has about as many messages to move, and about as many queues. Fullest first."""
    groups: list[list[str]] = [[] for _ in range(max(1, min(tasks, len(parked))))]
    weights = [0] * len(groups)
    for queue in sorted(parked, key=lambda path: (-parked[path], path)):
        lightest = weights.index(min(weights))
        groups[lightest].append(queue)
        weights[lightest] += parked[queue] + 1
    return [tuple(group) for group in groups]
