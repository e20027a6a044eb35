"""Measures the AMQP engine beside qpid-proton's Python binding: two empty queue servers, one client, one run.

    python -m bench.engine [--rounds 5] [--count 200000] [--size 1024]

Both servers keep messages in memory only, so what is measured is the protocol: peer/empty_proton.py on the binding,
empty_twinbus.py on our engine and our adapter with all limits on. peer/load.c drives each in turn. Only the ratios of
one run mean anything on a machine that does other things too; a figure is the median of its rounds, a ratio the median
of the rounds' ratios. Writes docs/benchmarks/engine.md and engine.json; exits 1 where a ratio is below what is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.support.results import add_results_option, environment_facts, environment_lines, write
from bench.support.server import HERE, LoadClientFailed, build, run, run_load

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = {"twinbus": HERE / "empty_twinbus.py", "proton": HERE / "peer" / "empty_proton.py"}
MIN_RATIOS = {"send": 12.0, "recv": 8.0}
PROTON_DIVISOR = 8
"""The slower server gets so many times fewer messages, so that both take seconds."""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def run_server(script: Path) -> Iterator[int]:
    """One of the servers, from when it listens until the block ends."""
    port = free_port()
    server = subprocess.Popen([sys.executable, script, str(port)])
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{script.name} does not listen")
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def measure(load: Path, mode: str, port: int, count: int, size: int, **environment: str) -> float:
    """Messages a second of one run of the load client; it must have missed none."""
    try:
        return run_load([str(load), mode, "127.0.0.1", str(port), "queue", str(count), str(size)], **environment).rate
    except LoadClientFailed as error:
        sys.exit(f"{mode} {count}: {error}")


def run_rounds(load: Path, rounds: int, count: int, size: int) -> dict[str, list[float]]:
    """Each server in turn, every round; the first round warms up and does not count."""
    figures: dict[str, list[float]] = {}
    with run_server(SERVERS["twinbus"]) as ours, run_server(SERVERS["proton"]) as theirs:
        for number in range(rounds + 1):
            fresh = {}
            for name, port, share in (("twinbus", ours, count), ("proton", theirs, count // PROTON_DIVISOR)):
                for mode in ("send", "recv"):
                    fresh[f"{name} {mode}"] = measure(load, mode, port, share, size)
            # Settlements confirmed by the server, as the Azure SDKs ask for; the other server has no such mode.
            measure(load, "send", ours, count, size)
            fresh["twinbus recv-second"] = measure(load, "recv", ours, count, size, SECOND="1")
            print(
                f"round {number or 'to warm up'}:", {name: f"{rate:,.0f}" for name, rate in fresh.items()}, flush=True
            )
            if number:
                for name, rate in fresh.items():
                    figures.setdefault(name, []).append(rate)
    return figures


def ratios(figures: dict[str, list[float]]) -> dict[str, float]:
    """How many times as fast as the other server, by the median of the rounds."""
    return {
        mode: statistics.median(
            ours / theirs for ours, theirs in zip(figures[f"twinbus {mode}"], figures[f"proton {mode}"], strict=True)
        )
        for mode in MIN_RATIOS
    }


def table(figures: dict[str, list[float]], found: dict[str, float], where: dict[str, str], size: int) -> str:
    """All of it as a page."""
    rows = "\n".join(
        f"| {name} | {statistics.median(rates):,.0f} | {', '.join(f'{rate:,.0f}' for rate in rates)} |"
        for name, rates in sorted(figures.items())
    )
    checks = "\n".join(f"| {mode} | {ratio:.1f}x | {MIN_RATIOS[mode]:.0f}x |" for mode, ratio in found.items())
    return (
        "# The AMQP engine, measured\n\n"
        "Made by `make bench`. An empty queue server (`bench/empty_twinbus.py`: engine, adapter, all limits on, no\n"
        "disk) beside the same on qpid-proton's Python binding (`bench/peer/empty_proton.py`), driven in turns.\n"
        f"Messages of {size} bytes, each accepted; only the ratios mean anything.\n\n"
        f"| | ratio | needed |\n|---|---|---|\n{checks}\n\n"
        f"| server and mode | messages/s, median | each round |\n|---|---|---|\n{rows}\n\n"
        "`recv-second`: each settlement confirmed by the server, as the Azure SDKs ask for.\n\n"
        f"{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--count", type=int, default=200_000)
    cli.add_argument("--size", type=int, default=1024)
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = run_rounds(build(Path(folder)), asked.rounds, asked.count, asked.size)
    found, where = ratios(figures), environment_facts("uvloop", "python-qpid-proton")
    measured = {"ratios": found, "needed": MIN_RATIOS, "rates": figures, "size": asked.size, "surroundings": where}
    write(asked.results, "engine", table(figures, found, where, asked.size), measured)
    missed = [mode for mode, ratio in found.items() if ratio < MIN_RATIOS[mode]]
    for mode in missed:
        print(f"{mode}: {found[mode]:.1f}x is below the {MIN_RATIOS[mode]:.0f}x needed")
    return bool(missed)


if __name__ == "__main__":
    run(main)
