"""Runs inputs by the million: numbers them, times each, watches memory, counts what was seen, keeps what it finds.

An input is made from the campaign's seed and its own number alone, so it can be made again. The file that is kept of a
finding has the bytes as well, for when the corpus or the mutations have changed since.

Owns: the loop, its clock and its limits. Knows nothing of what is tried.
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
"""Of processor time, for one input; they take less than a millisecond."""
WARM_UP: Final = 2_000
"""Inputs before memory is first looked at: caches fill, and the allocator takes what it needs."""
MAX_GROWTH_BYTES: Final = 24 * 1024 * 1024
MEMORY_CHECK_INTERVAL: Final = 500
"""Inputs between two looks at the clock and the memory."""
PAGE_BYTES: Final = resource.getpagesize()

TARGETS: Final[dict[str, Callable[[Input, collections.Counter[str]], None]]] = {
    "server": fuzz_connection,
    "client": fuzz_connection,
    "value": read_value,
    "message": read_message,
    "transfer": compare_decoders,
}
TARGET_SHARES: Final = (*["server"] * 8, *["client"] * 4, *["value"] * 3, *["message"] * 3, *["transfer"] * 2)
"""Which target how often."""


@dataclass(slots=True)
class FuzzStatistics:
    """What a campaign has seen so far. Those of several processes can be added."""

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
    on_check: Callable[[FuzzStatistics], None] = lambda _tally: None,
) -> FuzzStatistics:
    """Try inputs until their numbers or the time (of time.monotonic) run out, or enough is found."""
    tally = FuzzStatistics()
    inputs = InputGenerator(seed)
    started = time.monotonic()
    base_bytes = 0
    gc.collect()
    with _alarm():
        for number in numbers:
            tried = inputs.make(number)
            fault = run_input(tried, tally.seen)
            tally.inputs += 1
            if tally.inputs % MEMORY_CHECK_INTERVAL == 0:
                tally.seconds = time.monotonic() - started
                base_bytes = memory_bytes() if tally.inputs == WARM_UP else base_bytes
                if base_bytes:
                    tally.growth_bytes = max(tally.growth_bytes, memory_bytes() - base_bytes)
                if tally.growth_bytes > MAX_GROWTH_BYTES:
                    fault = Finding(f"memory grew by {tally.growth_bytes:,} bytes within {tally.inputs:,} inputs")
                on_check(tally)
            if fault is not None:
                tally.findings.append(save_finding(findings, tried, seed, number, fault))
                if len(tally.findings) >= max_findings:
                    break
            if started + tally.seconds >= until:
                break
    tally.seconds = time.monotonic() - started
    return tally


def run_input(fuzz_input: Input, seen: collections.Counter[str]) -> BaseException | None:
    """Try one input: what came out of it that should not."""
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
    try:
        TARGETS[fuzz_input.target](fuzz_input, seen)
    except (Exception, Finding) as fault:  # noqa: BLE001  # whatever comes is what is looked for
        return fault
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


@contextmanager
def _alarm() -> Iterator[None]:
    """Turns the timer's signal into Hang, wherever the code is."""

    def ring(*_: object) -> None:
        raise Hang(f"one input took more than {TIME_LIMIT_S} s of processor time")

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def memory_bytes() -> int:
    """What this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def save_finding(folder: Path, fuzz_input: Input, seed: int, number: int, fault: BaseException) -> Path:
    """Write a finding to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fuzz_input.target}-{seed}-{number}.json"
    kept = {
        "seed": seed,
        "number": number,
        "target": fuzz_input.target,
        "conversation": fuzz_input.conversation,
        "lot": fuzz_input.random_seed,
        "reads": [read.hex() for read in fuzz_input.reads],
        "fault": traceback.format_exception(fault),
    }
    path.write_text(json.dumps(kept, indent=1))
    return path


def replay(path: Path) -> BaseException | None:
    """Try a kept input once more."""
    kept = json.loads(path.read_text())
    reads = tuple(bytes.fromhex(read) for read in kept["reads"])
    with _alarm():
        return run_input(Input(kept["target"], reads, kept["lot"], kept["conversation"]), collections.Counter())
