"""Measures a durable queue, compared with RabbitMQ 4, with the same client on the same machine.

    python -m bench.speed [--rabbitmq DIR | --rabbitmq-port PORT] [--rounds 3] [--count 150000]

Builds the load client, starts RabbitMQ in DIR (the first use installs it, which takes some minutes and needs root and
network access) or uses a running one, starts `twinbus serve`, runs peer/compare on both, and stops what it started.
Every message is accepted after an fsync; bodies are incompressible. Writes docs/benchmarks/queue.md and queue.json;
exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import HERE, Server, build, run

if TYPE_CHECKING:
    from collections.abc import Iterator

RABBITMQ4: Final = HERE / "peer" / "rabbitmq4"
COMPARE: Final = HERE / "peer" / "compare"
MIN_RATIOS: Final = {"send": 2.0, "recv": 1.5, "recv-second": 1.0, "accept-p99": 1.0}
TARGET_RATIOS: Final = {"send": 3.0, "recv": 2.0}
MEANING: Final = {
    "send": "accepted sends, relative to the classic queue",
    "recv": "accepted receives, relative to the classic queue",
    "recv-second": "receives with confirmed settlement, relative to receives of the quorum queue",
    "accept-p99": "p99 until a single send is accepted, quorum queue relative to twinbus",
}
PEER_PORTS: Final = range(25_700, 32_000)
"""Ports below those of outgoing connections. RabbitMQ also uses the port 20,000 above."""
STOP_S: Final = 30.0
_FIGURE: Final = re.compile(r"^(\w[\w ]*?) +([\d,.]+) +of (.+)$", re.MULTILINE)
_RATIO: Final = re.compile(r"([\w-]+)=([\d.]+)")


def default_folder() -> Path:
    """Return the default folder of RabbitMQ, which is kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "twinbus-bench" / "rabbitmq4"


def peer_port() -> int:
    """Return a free port for RabbitMQ, whose second port is free, too."""
    for port in PEER_PORTS:
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 20_000))
            return port
    sys.exit("no free port for RabbitMQ")


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[int]:
    """Run RabbitMQ for the duration of the block, and yield its port."""
    if os.geteuid() != 0:
        sys.exit("RabbitMQ runs in its own folder with chroot: run as root, or use --rabbitmq-port of a running one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if processes_in(folder):
        sys.exit(f"RabbitMQ runs in {folder} already: use its --rabbitmq-port, or another folder")
    port = peer_port()
    try:
        started = subprocess.run([RABBITMQ4, "start", folder, str(port)], stdin=subprocess.DEVNULL, check=False)
        if started.returncode:
            # Two on one machine have the same node name, and the second does not start.
            sys.exit(f"RabbitMQ did not start ({folder}.log, {folder}/peer.log); if one runs, use --rabbitmq-port")
        yield port
    finally:
        stop_rabbitmq(folder)


def stop_rabbitmq(folder: Path) -> None:
    """Stop RabbitMQ and unmount everything in its folder, so that removing the folder does not remove /dev."""
    subprocess.run([RABBITMQ4, "stop", folder], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline and (left := processes_in(folder)):
        if set(left.values()) == {"epmd"}:  # Erlang's name server outlives the nodes
            subprocess.run(["chroot", folder, "epmd", "-kill"], capture_output=True, check=False)
        time.sleep(0.2)
    for name in ("dev", "proc"):
        if (folder / name).is_mount():
            subprocess.run(["umount", folder / name], check=False)


def processes_in(folder: Path) -> dict[int, str]:
    """Return the names of processes with the folder as root directory, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            if (process / "root").readlink() == folder.resolve():
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


def compare(ready_file: Path, port: int, load: Path, arguments: argparse.Namespace) -> str:
    """Run peer/compare, show its output, and return it."""
    words = [sys.executable, str(COMPARE), str(ready_file), str(port), str(load), "--rounds", str(arguments.rounds)]
    words += ["--count", str(arguments.count), "--size", str(arguments.size)]
    words += ["--need", *[f"{row}={ratio}" for row, ratio in MIN_RATIOS.items()]]
    print(f"comparing: {arguments.rounds} rounds of {arguments.count:,} messages on both servers", flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode not in {0, 1} or not read_ratios(done.stdout):
        sys.exit("peer/compare failed")
    return done.stdout


def read_figures(text: str) -> dict[str, list[float]]:
    """Return the values of all rounds of each figure."""
    return {
        name: [float(value.replace(",", "")) for value in rounds.split(", ")]
        for name, _, rounds in _FIGURE.findall(text)
    }


def read_medians(text: str) -> dict[str, str]:
    """Return the median of each figure, as printed."""
    return {name: median for name, median, _ in _FIGURE.findall(text)}


def read_ratios(text: str) -> dict[str, float]:
    """Return the ratios, which are in the last line."""
    lines = text.splitlines()
    return {row: float(ratio) for row, ratio in _RATIO.findall(lines[-1])} if lines else {}


def find_thresholds(ratios: dict[str, float]) -> list[Threshold]:
    """Return the thresholds."""
    aims = {row: f" (target: {ratio:g}x)" for row, ratio in TARGET_RATIOS.items()}
    return [
        Threshold(f"{row}: {MEANING[row]}{aims.get(row, '')}", ratios[row], MIN_RATIOS[row], "x") for row in MIN_RATIOS
    ]


def make_page(thresholds: list[Threshold], text: str, where: dict[str, str], arguments: argparse.Namespace) -> str:
    """Return the page."""
    medians, figures = read_medians(text), read_figures(text)
    rows = "\n".join(
        f"| {name} | {medians[name]} | {', '.join(f'{value:,.2f}' for value in rounds)} |"
        for name, rounds in figures.items()
    )
    others = ", ".join(f"{row} {ratio:.2f}x" for row, ratio in read_ratios(text).items() if row not in MIN_RATIOS)
    return (
        "# Benchmark: durable queues and RabbitMQ\n\n"
        "Generated by `make bench` (`python -m bench.speed`). The same client measures `twinbus serve` and RabbitMQ\n"
        f"4 alternately, both with fsync, with {arguments.count:,} incompressible messages of {arguments.size} bytes\n"
        "per round, each accepted. Only the ratios are meaningful. `plain` and `partitioned` are queues of twinbus,\n"
        "`classic` and `quorum` are queues of RabbitMQ.\n\n"
        f"{thresholds_table(thresholds)}\n\nOther ratios: {others}.\n\n"
        f"| messages/s, or ms | median | each round |\n|---|---|---|\n{rows}\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rabbitmq", type=Path, default=default_folder(), metavar="DIR", help="default: %(default)s")
    cli.add_argument("--rabbitmq-port", type=int, metavar="PORT", help="port of a running RabbitMQ to use")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=150_000)
    cli.add_argument("--size", type=int, default=1024)
    add_results_option(cli)
    asked = cli.parse_args(argv)
    given = asked.rabbitmq_port
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as name:
        folder = Path(name)
        load = build(folder)
        peer = contextlib.nullcontext(given) if given else rabbitmq(asked.rabbitmq)
        with peer as port, Server.started(folder / "server") as server:
            text = compare(server.ready_file, port, load, asked)
            server.stop()
    ratios = read_ratios(text)
    bars, where = find_thresholds(ratios), environment_facts("uvloop", "rocksdict")
    measured = {
        "bars": bars,
        "ratios": ratios,
        "figures": read_figures(text),
        "size": asked.size,
        "surroundings": where,
    }
    write(asked.results, "queue", make_page(bars, text, where, asked), measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
