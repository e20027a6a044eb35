"""Demonstration of an outage: its effects on an application with a pair of namespaces, and its costs.

    python tools/demo.py [--seconds 5]

The demonstration serves a pair in a temporary folder and sends from eight tasks. It kills the primary with SIGKILL,
keeps sending, and starts the primary again. Then it drains the backlog with the syphon on Spark, receives all messages,
audits that none was lost, and computes the costs. Draining, audit and costs use the `twinbus pipeline` commands. At the
end, it stops all processes that it started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinbus.client import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.client.management import QueueDescription
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.pairing import Pairing, PairingEvent

SENDERS: Final = 8
RATE: Final = 50
"""Messages per second of each sender."""
PING_S: Final = 2.0
START_S: Final = 30.0
TWINBUS: Final = str(Path(sys.executable).parent / "twinbus")
MASTER: Final = "local[2,4]"
"""The Spark master: on this machine, with two threads."""


class Namespace:
    """A server in its own process, which keeps its ports across restarts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.data = folder / name
        self._ports = dict.fromkeys(("amqp", "amqps", "http", "https"), 0)
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        ready_file = self._folder / f"{self.name}.json"
        ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in self._ports.items()]
        command = [TWINBUS, "serve", self.name, "--log-level=error"]
        command += [f"--data={self.data}", f"--ready-file={ready_file}", *ports]
        self._process = subprocess.Popen(command)  # noqa: S603  # our own command
        deadline = time.monotonic() + START_S
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did not start")
            time.sleep(0.05)
        self.ready = json.loads(ready_file.read_text())
        self._ports = {name: self.ready[f"{name}_port"] for name in self._ports}

    def end(self, how: signal.Signals) -> None:
        """Send a signal to the server and wait until it has exited."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait()


class SendStatistics:
    """Results of the senders."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.failed: Counter[str] = Counter()
        self.longest_s = 0.0
        self.events: Counter[EventKind] = Counter()

    def on_event(self, event: PairingEvent) -> None:
        """Count an event."""
        self.events[event.kind] += event.count


@contextlib.asynccontextmanager
async def paired(primary: Namespace, secondary: Namespace, journals: Path) -> AsyncIterator[Pairing]:
    """Pair the namespaces for an application that writes a journal of its messages."""
    admin, ca_file = secondary.ready["admin_connection_string"], secondary.ready["ca_file"]
    async with NamespaceManager.from_connection_string(admin, ca_file=ca_file) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary.ready["connection_string"]),
            secondary_namespace_manager=manager,
            primary_namespace_name=primary.name,
            failover_interval=0,
            ping_primary_interval=PING_S,
            journal_dir=journals,
        )
        factory = MessagingFactory.from_connection_string(primary.ready["connection_string"])
        async with await factory.pair_namespace(options) as pairing:
            yield pairing


async def send(pairing: Pairing, number: int, tally: SendStatistics, stop: asyncio.Event) -> None:
    """Send messages one by one, at a constant rate."""
    orders = pairing.primary.create_queue_client("orders")
    count = 0
    while not stop.is_set():
        message = BrokeredMessage(f"order {count} of sender {number}", message_id=f"{number}-{count}")
        started = time.monotonic()
        try:
            await orders.send(message)
        except Exception as error:  # noqa: BLE001  # all errors are counted
            tally.failed[type(error).__name__] += 1
        else:
            tally.sent.add(str(message.message_id))
        took_s = time.monotonic() - started
        tally.longest_s = max(tally.longest_s, took_s)
        count += 1
        await asyncio.sleep(max(0.0, 1 / RATE - took_s))


async def receive_all(pairing: Pairing) -> Counter[str]:
    """Receive all messages of the queue, and count them by message id."""
    orders = pairing.primary.create_queue_client("orders")
    found: Counter[str] = Counter()
    while batch := await orders.receive_batch(500, 1.0):
        found.update(str(message.message_id) for message in batch)
        await orders.receiver.complete_batch(batch)
    return found


async def show(folder: Path, seconds: float, console: Console) -> bool:
    """Show the outage, its audit and its costs; return whether no message was lost."""
    primary, secondary = Namespace("contoso", folder), Namespace("contoso-backup", folder)
    journals = folder / "journals"
    try:
        console.print("[bold]1[/] starting a pair of namespaces: contoso and contoso-backup")
        primary.start()
        secondary.start()
        admin, ca_file = primary.ready["admin_connection_string"], primary.ready["ca_file"]
        async with NamespaceManager.from_connection_string(admin, ca_file=ca_file) as manager:
            # Messages in flight when contoso is killed may be in both namespaces: the queue removes such duplicates.
            await manager.create_queue("orders", QueueDescription(requires_duplicate_detection=True))
        async with paired(primary, secondary, journals) as pairing:
            is_whole = await outage(pairing, (primary, secondary), journals, seconds, console)
        console.print("[bold]6[/] auditing every message")
        is_whole = await audit(primary, secondary, journals, console) and is_whole
    finally:
        for namespace in (primary, secondary):
            namespace.end(signal.SIGTERM)
    console.print("[bold]7[/] computing the costs from the usage that both servers recorded")
    words = [str(primary.data), str(secondary.data), f"--journals={journals}", f"--master={MASTER}"]
    return await command("costs", words, "DATA DATA --journals DIR", console, until="Entities") and is_whole


async def outage(
    pairing: Pairing, namespaces: tuple[Namespace, Namespace], journals: Path, seconds: float, console: Console
) -> bool:
    """Send before, during and after the outage; return whether all messages arrived."""
    primary, secondary = namespaces
    tally, stop = SendStatistics(), asyncio.Event()
    pairing.on_event(tally.on_event)
    senders = [asyncio.ensure_future(send(pairing, number, tally, stop)) for number in range(SENDERS)]
    console.print(f"[bold]2[/] {SENDERS} senders send {SENDERS * RATE} messages per second")
    await asyncio.sleep(seconds)
    primary.end(signal.SIGKILL)
    console.print("[bold]3[/] contoso is killed; the senders continue")
    await asyncio.sleep(seconds)
    console.print(f"   {tally.events[EventKind.PARKED]:,} messages are parked in contoso-backup")
    await asyncio.to_thread(primary.start)
    console.print("[bold]4[/] contoso is back and gets new messages; the syphon on Spark drains the backlog")
    draining = asyncio.ensure_future(drain(primary, secondary, journals, console))
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*senders)
    is_drained = await draining
    console.print("[bold]5[/] receiving all messages from contoso")
    received = await receive_all(pairing)
    return summary(tally, received, console) and is_drained


async def drain(primary: Namespace, secondary: Namespace, journals: Path, console: Console) -> bool:
    """Move the parked messages back with `twinbus pipeline syphon`."""
    words = [f"--primary-name={primary.name}", "--available-now", f"--journal-dir={journals}", f"--master={MASTER}"]
    return await command("syphon", words, "--available-now", console, connections=connections(primary, secondary))


async def audit(primary: Namespace, secondary: Namespace, journals: Path, console: Console) -> bool:
    """Check with `twinbus pipeline audit` that no message was lost."""
    words = [str(journals), "--covered=orders", f"--master={MASTER}"]
    return await command("audit", words, "DIR --covered orders", console, connections=connections(primary, secondary))


def connections(primary: Namespace, secondary: Namespace) -> dict[str, str]:
    """Return the environment variables for both namespaces: other users can read arguments, but not these."""
    variables = {}
    for prefix, namespace in (("TWINBUS", primary), ("TWINBUS_SECONDARY", secondary)):
        variables[f"{prefix}_CONNECTION_STRING"] = str(namespace.ready["connection_string"])
        variables[f"{prefix}_ADMIN_CONNECTION_STRING"] = str(namespace.ready["admin_connection_string"])
        variables[f"{prefix}_CA_FILE"] = str(namespace.ready["ca_file"])
    return variables


async def command(
    name: str,
    words: list[str],
    shown: str,
    console: Console,
    *,
    until: str | None = None,
    connections: dict[str, str] | None = None,
) -> bool:
    """Run a command of `twinbus pipeline`, show its output up to the line `until`, and return whether it succeeded."""
    console.print(Text(f"$ twinbus pipeline {name} {shown}", style="bold"))
    environment = {**os.environ, **(connections or {})}
    if console.is_terminal:  # the command's output has colours, too, but no animations
        environment |= {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(console.width)}
    process = await asyncio.create_subprocess_exec(
        TWINBUS, "pipeline", name, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        with console.status("Spark is running"):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    for line in (said if process.returncode == 0 else said + complaints).decode(errors="replace").splitlines():
        text = Text.from_ansi(line)
        if text.plain.strip() == until:
            break
        console.print(text, soft_wrap=True)
    return process.returncode == 0


def summary(tally: SendStatistics, received: Counter[str], console: Console) -> bool:
    """Print the results; return whether no send failed and no message was lost."""
    lost = tally.sent - received.keys()
    twice = sum(count - 1 for count in received.values())
    table = Table("", "", title="The outage", show_header=False)
    rows: list[tuple[str, object]] = [
        ("sends that succeeded", f"{len(tally.sent):,}"),
        ("sends that failed", f"{sum(tally.failed.values()):,}"),
        ("the longest send", f"{tally.longest_s * 1000:,.0f} ms"),
        ("parked in contoso-backup", f"{tally.events[EventKind.PARKED]:,}"),
        ("pings", f"{tally.events[EventKind.PINGED]:,}"),
        ("received from contoso", f"{len(received):,}"),
        ("received twice", f"{twice:,}"),
        ("lost", f"{len(lost):,}"),
    ]
    for name, value in rows:
        table.add_row(name, str(value))
    console.print(table)
    return not lost and not tally.failed


def main() -> int:
    """Return 0 if no send failed and no message was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="duration of each phase: before, during and after the outage (default: 5)",
    )
    arguments = parser.parse_args()
    logging.getLogger("twinbus").setLevel(logging.CRITICAL)  # the table shows the results
    with tempfile.TemporaryDirectory(prefix="twinbus-demo-") as folder:
        return 0 if asyncio.run(show(Path(folder), arguments.seconds, Console())) else 1


if __name__ == "__main__":
    sys.exit(main())
