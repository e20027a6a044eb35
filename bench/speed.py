"""Measures the durable queue beside RabbitMQ 4: one client, one machine, one run, in turns.

    python -m bench.speed [--rabbitmq DIR | --rabbitmq-port PORT] [--rounds 3] [--count 150000]

Makes the load client, starts RabbitMQ (in DIR, which its first use makes: some minutes, root, the network) or takes one
that runs, starts `twinbus serve`, has peer/compare measure both, and stops what it started. Every message is accepted
after an fsync; bodies are incompressible. Writes docs/benchmarks/queue.md and queue.json; exits 1 where a bar is
missed.
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
    "send": "sends accepted, of the classic queue's",
    "recv": "receives accepted, of the classic queue's",
    "recv-second": "receives with confirmed settlement, of the quorum queue's receives",
    "accept-p99": "how many times sooner than the quorum queue's a lone send is accepted, p99",
}
PEER_PORTS: Final = range(25_700, 32_000)
"""Below those that outgoing connections get; RabbitMQ takes the one 20,000 above, too."""
STOP_S: Final = 30.0
_FIGURE: Final = re.compile(r"^(\w[\w ]*?) +([\d,.]+) +of (.+)$", re.MULTILINE)
_RATIO: Final = re.compile(r"([\w-]+)=([\d.]+)")


def default_folder() -> Path:
    """Where RabbitMQ is kept from one run to the next."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "twinbus-bench" / "rabbitmq4"


def peer_port() -> int:
    """A port that RabbitMQ can have, with the one that it takes beside it."""
    for port in PEER_PORTS:
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 20_000))
            return port
    sys.exit("no free port for RabbitMQ")


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[int]:
    """RabbitMQ on a port, from when it listens until the block ends."""
    if os.geteuid() != 0:
        sys.exit("RabbitMQ is run in a folder of its own by chroot: be root, or give --rabbitmq-port of one that runs")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if processes_in(folder):
        sys.exit(f"RabbitMQ runs in {folder} already, for somebody else: give its --rabbitmq-port, or another folder")
    port = peer_port()
    try:
        started = subprocess.run([RABBITMQ4, "start", folder, str(port)], stdin=subprocess.DEVNULL, check=False)
        if started.returncode:
            # Two of them on one machine have the same name, and the second does not start.
            sys.exit(f"RabbitMQ did not start ({folder}.log, {folder}/peer.log); does one run? Give --rabbitmq-port")
        yield port
    finally:
        stop_rabbitmq(folder)


def stop_rabbitmq(folder: Path) -> None:
    """Stop it, and leave nothing of the machine mounted in its folder: who removes that would remove /dev with it."""
    subprocess.run([RABBITMQ4, "stop", folder], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline and (left := processes_in(folder)):
        if set(left.values()) == {"epmd"}:  # Erlang's list of names outlives what it lists; it refuses if it has any
            subprocess.run(["chroot", folder, "epmd", "-kill"], capture_output=True, check=False)
        time.sleep(0.2)
    for name in ("dev", "proc"):
        if (folder / name).is_mount():
            subprocess.run(["umount", folder / name], check=False)


def processes_in(folder: Path) -> dict[int, str]:
    """The names of those that have the folder as their root, by their ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (process / "root").readlink() == folder.resolve():
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


def compare(ready_file: Path, port: int, load: Path, arguments: argparse.Namespace) -> str:
    """What peer/compare prints, shown as it comes."""
    words = [sys.executable, str(COMPARE), str(ready_file), str(port), str(load), "--rounds", str(arguments.rounds)]
    words += ["--count", str(arguments.count), "--size", str(arguments.size)]
    words += ["--need", *[f"{row}={ratio}" for row, ratio in MIN_RATIOS.items()]]
    print(f"comparing: {arguments.rounds} rounds of {arguments.count:,} messages, each server in turn", flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode not in {0, 1} or not read_ratios(done.stdout):
        sys.exit("the comparison did not come to its end")
    return done.stdout


def read_figures(text: str) -> dict[str, list[float]]:
    """Each figure's rounds."""
    return {
        name: [float(value.replace(",", "")) for value in rounds.split(", ")]
        for name, _, rounds in _FIGURE.findall(text)
    }


def read_medians(text: str) -> dict[str, str]:
    """Each figure, as it was printed."""
    return {name: median for name, median, _ in _FIGURE.findall(text)}


def read_ratios(text: str) -> dict[str, float]:
    """From the last line."""
    lines = text.splitlines()
    return {row: float(ratio) for row, ratio in _RATIO.findall(lines[-1])} if lines else {}


def find_thresholds(ratios: dict[str, float]) -> list[Threshold]:
    """What is needed of them."""
    aims = {row: f" (aim: {ratio:g}x)" for row, ratio in TARGET_RATIOS.items()}
    return [
        Threshold(f"{row}: {MEANING[row]}{aims.get(row, '')}", ratios[row], MIN_RATIOS[row], "x") for row in MIN_RATIOS
    ]


def make_page(thresholds: list[Threshold], text: str, where: dict[str, str], arguments: argparse.Namespace) -> str:
    """All of it, for people."""
    medians, figures = read_medians(text), read_figures(text)
    rows = "\n".join(
        f"| {name} | {medians[name]} | {', '.join(f'{value:,.2f}' for value in rounds)} |"
        for name, rounds in figures.items()
    )
    others = ", ".join(f"{row} {ratio:.2f}x" for row, ratio in read_ratios(text).items() if row not in MIN_RATIOS)
    return (
        "# The durable queue, measured\n\n"
        "Made by `make bench` (`python -m bench.speed`): `twinbus serve` beside RabbitMQ 4, the same client, in\n"
        f"turns, fsync on; {arguments.count:,} incompressible messages of {arguments.size} bytes a round, "
        "each accepted; only\n"
        "the ratios mean anything. `plain` and `partitioned` are twinbus's, `classic` and `quorum` RabbitMQ's.\n\n"
        f"{thresholds_table(thresholds)}\n\nOther ratios: {others}.\n\n"
        f"| messages/s, or ms | median | each round |\n|---|---|---|\n{rows}\n\n{environment_lines(where)}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rabbitmq", type=Path, default=default_folder(), metavar="DIR", help="default: %(default)s")
    cli.add_argument("--rabbitmq-port", type=int, metavar="PORT", help="of one that runs; it is left running")
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
