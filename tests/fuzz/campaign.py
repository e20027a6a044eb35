"""Runs fuzz inputs: numbers and times them, watches memory, counts events, and saves findings.

The campaign's seed and the number of an input are enough to create the input again. The file of a finding also holds
the bytes, in case the corpus or the mutations change.

Owns: the loop, its clock and its limits. Must not know the targets' invariants.
"""

from __future__ import annotations

import collections
import gc
import json
import random
import resource
import signal
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fuzz.codec_targets import compare_decoders, read_message, read_value
from tests.fuzz.connection_target import fuzz_connection
from tests.fuzz.finding import Finding, Hang
from tests.fuzz.mutator import Input, Mutator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TIME_LIMIT_S: Final = 2.0
"""Processor time allowed for one input; a usual input takes less than a millisecond."""
WARM_UP: Final = 2_000
"""Number of inputs before memory is first measured, while caches and the allocator warm up."""
MAX_GROWTH_BYTES: Final = 24 * 1024 * 1024
MEMORY_CHECK_INTERVAL: Final = 500
"""Number of inputs between two checks of the clock and the memory."""
PAGE_BYTES: Final = resource.getpagesize()

TARGETS: Final[dict[str, Callable[[Input, collections.Counter[str]], None]]] = {
    "server": fuzz_connection,
    "client": fuzz_connection,
    "value": read_value,
    "message": read_message,
    "transfer": compare_decoders,
}
TARGET_SHARES: Final = (*["server"] * 8, *["client"] * 4, *["value"] * 3, *["message"] * 3, *["transfer"] * 2)
"""Targets, each as often as it should be chosen."""


@dataclass(slots=True)
class FuzzStatistics:
    """Counters and findings of a campaign. Statistics of several processes can be added."""

    inputs: int = 0
    seconds: float = 0.0
    growth_bytes: int = 0
    seen: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: list[Path] = field(default_factory=list)

    def add(self, other: FuzzStatistics) -> None:
        self.inputs += other.inputs
        self.seconds = max(self.seconds, other.seconds)
        self.growth_bytes = max(self.growth_bytes, other.growth_bytes)
        self.seen.update(other.seen)
        self.findings += other.findings


class InputGenerator:
    """All inputs of a seed, by number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random()
        self._mutator = Mutator(self._rng)

    def make(self, number: int) -> Input:
        self._rng.seed((self._seed << 48) + number)
        return self._mutator.make(TARGET_SHARES[self._mutator.random_below(len(TARGET_SHARES))])


def run(
    seed: int,
    numbers: Iterable[int],
    *,
    until: float = float("inf"),
    findings: Path,
    max_findings: int = 1,
    on_check: Callable[[FuzzStatistics], None] = lambda _statistics: None,
) -> FuzzStatistics:
    """Run inputs until the numbers or the time (of time.monotonic) run out, or `max_findings` is reached."""
    statistics = FuzzStatistics()
    inputs = InputGenerator(seed)
    started = time.monotonic()
    base_bytes = 0
    gc.collect()
    with _alarm():
        for number in numbers:
            fuzz_input = inputs.make(number)
            fault = run_input(fuzz_input, statistics.seen)
            statistics.inputs += 1
            if statistics.inputs % MEMORY_CHECK_INTERVAL == 0:
                statistics.seconds = time.monotonic() - started
                base_bytes = memory_bytes() if statistics.inputs == WARM_UP else base_bytes
                if base_bytes:
                    statistics.growth_bytes = max(statistics.growth_bytes, memory_bytes() - base_bytes)
                if statistics.growth_bytes > MAX_GROWTH_BYTES:
                    fault = Finding(
                        f"memory grew by {statistics.growth_bytes:,} bytes within {statistics.inputs:,} inputs"
                    )
                on_check(statistics)
            if fault is not None:
                statistics.findings.append(save_finding(findings, fuzz_input, seed, number, fault))
                if len(statistics.findings) >= max_findings:
                    break
            if started + statistics.seconds >= until:
                break
    statistics.seconds = time.monotonic() - started
    return statistics


def run_input(fuzz_input: Input, seen: collections.Counter[str]) -> BaseException | None:
    """Run one input; return its fault, or None."""
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
    try:
        TARGETS[fuzz_input.target](fuzz_input, seen)
    except (Exception, Finding) as fault:  # noqa: BLE001  # any exception is a finding
        return fault
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


@contextmanager
def _alarm() -> Iterator[None]:
    """Turn the signal of the timer into a Hang exception."""

    def ring(*_: object) -> None:
        raise Hang(f"one input took more than {TIME_LIMIT_S} s of processor time")

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def save_finding(folder: Path, fuzz_input: Input, seed: int, number: int, fault: BaseException) -> Path:
    """Write a finding to its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fuzz_input.target}-{seed}-{number}.json"
    saved = {
        "seed": seed,
        "number": number,
        "target": fuzz_input.target,
        "conversation": fuzz_input.conversation,
        "lot": fuzz_input.random_seed,
        "reads": [read.hex() for read in fuzz_input.reads],
        "fault": traceback.format_exception(fault),
    }
    path.write_text(json.dumps(saved, indent=1))
    return path


def replay(path: Path) -> BaseException | None:
    """Run the input of a saved finding again."""
    saved = json.loads(path.read_text())
    reads = tuple(bytes.fromhex(read) for read in saved["reads"])
    with _alarm():
        return run_input(Input(saved["target"], reads, saved["lot"], saved["conversation"]), collections.Counter())
