"""What a run from a seed found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class RunOutcome(NamedTuple):
    seed: int
    steps: int
    fault: str | None


def run_seed(run: Callable[[int], int], seed: int) -> RunOutcome:
    """Whatever is raised is a finding: a broker that stumbles is as wrong as one that loses a message."""
    try:
        return RunOutcome(seed, run(seed), None)
    except Exception as error:  # noqa: BLE001
        return RunOutcome(seed, 0, describe_error(error))


def describe_error(error: Exception) -> str:
    """What a run found; of several, which one commit may show, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
