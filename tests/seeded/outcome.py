"""What a run from a seed found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Outcome(NamedTuple):
    seed: int
    steps: int
    fault: str | None


def attempt(run: Callable[[int], int], seed: int) -> Outcome:
    """Whatever is raised is a finding: a broker that stumbles is as wrong as one that loses a message."""
    try:
        return Outcome(seed, run(seed), None)
    except Exception as error:  # noqa: BLE001
        return Outcome(seed, 0, described(error))


def described(error: Exception) -> str:
    """What a run found; of several, which one commit may show, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
