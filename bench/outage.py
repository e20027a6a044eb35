"""Measures what an application sees of an outage: how long its sends take, and how many fail.

    python -m bench.outage [--rate 1000] [--seconds 6] [--rounds 3] [--folder DIR]

A pair of servers, and a program that begins so many sends a second, whatever became of those before. Failover is at
once, a ping goes out every second, a silent primary is waited for for two. The primary is killed and started again,
stopped and continued, and cut off by a network that falls silent. Writes docs/benchmarks/outage.md and outage.json;
exits 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import Server, run
from tests.support.relay import Relay
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from twinbus.client.pairing import Pairing, PairingEvent

QUEUE: Final = "orders"
BODY_BYTES: Final = 1_024
OPERATION_TIMEOUT_S: Final = 20.0
ATTEMPT_TIMEOUT_S: Final = 2.0
PING_S: Final = 1.0
PING_TAKES_S: Final = 0.1
"""What a ping may take beside the interval."""
STEP_S: Final = 0.005
"""Sends begin in little heaps, so often."""
WARM_S: Final = 2.0
RETURN_S: Final = 20.0
MAX_RETURN_S: Final = 1.0
SHOWN_FAILURES: Final = 5
"""Kinds of failures that are kept of one outage."""


class Namespace(Server):
    """A server of the pair."""

    @property
    def http_port(self) -> int:
        """Where it is managed."""
        return self._http_port

    def start(self) -> float:
        """Start it: the second time on the ports of the first."""
        if self.amqp_port:
            self._options = (*self._options, f"--amqp-port={self.amqp_port}", f"--http-port={self._http_port}")
        return super().start()

    def send_signal(self, number: signal.Signals) -> None:
        """Stop it, or let it go on."""
        os.kill(self.process.pid, number)

    def string_for(self, port: int) -> str:
        """For what listens at that port."""
        return (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}"
            ";UseDevelopmentEmulator=true"
        )


@dataclass(frozen=True, slots=True)
class Send:
    """One send of the application."""

    began_s: float
    took_s: float
    is_parked: bool
    failure: str | None


@dataclass
class OutageMeasurement:
    """One outage."""

    kind: str
    sends: int
    parked: int
    failed: int
    longest_s: float
    """Of all sends."""
    longest_after_failover_s: float
    """Of those that began after it."""
    failover_s: float
    """From the outage to failover."""
    back_s: float
    """From the return of the primary to the first send that it took."""
    failures: dict[str, int]
    """What the sends that failed were told, and how many were."""


@dataclass
class Application:
    """A program that sends at a rate of its own."""

    pairing: Pairing
    sends: list[Send] = field(default_factory=list)
    failed_over_s: list[float] = field(default_factory=list)
    _parked: set[object] = field(default_factory=set)

    def listen(self, event: PairingEvent) -> None:
        """What the pairing tells."""
        if event.kind is EventKind.PARKED:
            self._parked.add(event.message_id)
        elif event.kind is EventKind.FAILED_OVER:
            self.failed_over_s.append(time.monotonic())

    async def send_at(self, rate: float, is_over: asyncio.Event) -> None:
        """Begin so many sends a second until it is over; then wait for the last of them."""
        client, body = self.pairing.primary.create_queue_client(QUEUE), os.urandom(BODY_BYTES)
        started_s, count = time.monotonic(), 0
        sending: set[asyncio.Task[None]] = set()

        async def send() -> None:
            message, failure, began_s = BrokeredMessage(body), None, time.monotonic()
            try:
                await client.send(message)
            except ServiceBusError as error:
                failure = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - began_s
            self.sends.append(Send(began_s, took_s, message.message_id in self._parked, failure))

        while not is_over.is_set():
            due = round((time.monotonic() - started_s) * rate)
            for _ in range(due - count):
                task = asyncio.ensure_future(send())
                sending.add(task)
                task.add_done_callback(sending.discard)
            count = max(count, due)
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*sending)


@contextlib.asynccontextmanager
async def application(primary: Namespace, secondary: Namespace, port: int) -> AsyncIterator[Application]:
    """A program that has paired, and finds the primary at that port."""
    async with (
        MessagingFactory.from_connection_string(primary.string_for(port), operation_timeout=OPERATION_TIMEOUT_S) as one,
        MessagingFactory.from_connection_string(
            secondary.string_for(secondary.amqp_port), operation_timeout=OPERATION_TIMEOUT_S
        ) as other,
        NamespaceManager.from_connection_string(secondary.string_for(secondary.http_port)) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=other,
            secondary_namespace_manager=manager,
            failover_interval=0,
            ping_primary_interval=PING_S,
            primary_attempt_timeout=ATTEMPT_TIMEOUT_S,
            primary_namespace_name="bench",
        )
        async with await one.pair_namespace(options) as pairing:
            app = Application(pairing)
            pairing.on_event(app.listen)
            yield app


async def measure(
    kind: str,
    app: Application,
    rate: float,
    seconds: float,
    begin: Callable[[], object],
    end: Callable[[], Awaitable[object]],
) -> OutageMeasurement:
    """Send, have an outage for so long, and wait until the primary takes messages again."""
    is_over = asyncio.Event()
    sending = asyncio.ensure_future(app.send_at(rate, is_over))
    await asyncio.sleep(WARM_S)
    began_s = time.monotonic()
    begin()
    await asyncio.sleep(seconds)
    await end()
    back_s = time.monotonic()
    first: Send | None = None
    while first is None and time.monotonic() < back_s + RETURN_S:
        await asyncio.sleep(STEP_S)
        straight = (send for send in reversed(app.sends) if send.began_s >= back_s and not send.is_parked)
        first = next(straight, None)
    is_over.set()
    await sending
    taken = [send.began_s + send.took_s for send in app.sends if send.began_s >= back_s and not send.is_parked]
    failover_s = min((at_s for at_s in app.failed_over_s if at_s >= began_s), default=float("inf"))
    after = [send.took_s for send in app.sends if send.began_s >= failover_s]
    return OutageMeasurement(
        kind,
        len(app.sends),
        sum(send.is_parked for send in app.sends),
        sum(send.failure is not None for send in app.sends),
        max(send.took_s for send in app.sends),
        max(after, default=float("inf")),
        failover_s - began_s,
        min(taken, default=float("inf")) - back_s,
        dict(Counter(send.failure for send in app.sends if send.failure is not None).most_common(SHOWN_FAILURES)),
    )


async def measure_all(primary: Namespace, secondary: Namespace, rate: float, seconds: float) -> list[OutageMeasurement]:
    """One round: each kind of outage once."""

    async def start() -> None:
        await asyncio.to_thread(primary.start)

    async def proceed() -> None:
        primary.send_signal(signal.SIGCONT)

    found = []
    async with application(primary, secondary, primary.amqp_port) as app:
        found.append(await measure("killed", app, rate, seconds, primary.kill, start))
    async with application(primary, secondary, primary.amqp_port) as app:
        stop = lambda: primary.send_signal(signal.SIGSTOP)  # noqa: E731  # one word for one call
        found.append(await measure("stopped", app, rate, seconds, stop, proceed))
    async with Relay("127.0.0.1", primary.amqp_port) as relay, application(primary, secondary, relay.port) as app:
        found.append(await measure("network silent", app, rate, seconds, relay.drop_silently, relay.restore))
    for measured in found:
        print(row(measured), flush=True)
    return found


def find_thresholds(found: Sequence[OutageMeasurement]) -> list[Threshold]:
    """The worst of all rounds counts."""
    bars = []
    for kind in ("killed", "stopped", "network silent"):
        of_kind = [measured for measured in found if measured.kind == kind]
        longest_s = MAX_RETURN_S if kind == "killed" else ATTEMPT_TIMEOUT_S + 1
        bars += [
            Threshold(f"{kind}: sends that failed", max(one.failed for one in of_kind), 0, is_ceiling=True),
            Threshold(
                f"{kind}: the longest send", max(one.longest_s for one in of_kind), longest_s, " s", is_ceiling=True
            ),
            Threshold(
                f"{kind}: the longest send that began after failover",
                max(one.longest_after_failover_s for one in of_kind),
                MAX_RETURN_S,
                " s",
                is_ceiling=True,
            ),
            Threshold(
                f"{kind}: from the return of the primary to the first send it took",
                max(one.back_s for one in of_kind),
                PING_S + PING_TAKES_S,
                " s",
                is_ceiling=True,
            ),
        ]
    return bars


def row(measured: OutageMeasurement) -> str:
    """A line of a table."""
    return (
        f"| {measured.kind} | {measured.sends:,} | {measured.parked:,} | {measured.failed:,} | "
        f"{measured.failover_s:.2f} s | {measured.longest_s:.2f} s | {measured.longest_after_failover_s:.2f} s | "
        f"{measured.back_s:.2f} s |"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rate", type=float, default=1_000.0, help="sends a second")
    cli.add_argument("--seconds", type=float, default=6.0, help="of each outage")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as folder,
        Namespace.started(Path(folder, "one"), "--min-free=0") as primary,
        Namespace.started(Path(folder, "other"), "--min-free=0") as secondary,
    ):
        assert isinstance(primary, Namespace)
        assert isinstance(secondary, Namespace)
        primary.create_queue(QUEUE, 5120)
        found: list[OutageMeasurement] = []
        for _ in range(asked.rounds):
            found += uvloop.run(measure_all(primary, secondary, asked.rate, asked.seconds))
    bars, where = find_thresholds(found), environment_facts("uvloop", "rocksdict")
    where["load average"] = f"{os.getloadavg()[0]:.1f}"  # other work on the machine is in every figure
    page = (
        "# An outage, as an application sees it\n\n"
        f"Made by `python -m bench.outage`: {asked.rate:,.0f} sends a second of {BODY_BYTES:,} bytes, begun whatever\n"
        f"became of those before, through outages of {asked.seconds:g} s; {asked.rounds} rounds, of which the worst\n"
        f"counts. `failover_interval` 0, `ping_primary_interval` {PING_S:g} s, `primary_attempt_timeout`"
        f" {ATTEMPT_TIMEOUT_S:g} s,\noperation timeout {OPERATION_TIMEOUT_S:g} s. The return of a primary "
        "that was killed is when it\n"
        f"serves again; a ping may take {PING_TAKES_S:g} s beside its interval.\n\n"
        f"{thresholds_table(bars)}\n\n"
        "| the primary | sends | parked | failed | until failover | longest send | after failover | back |\n"
        "|---|---|---|---|---|---|---|---|\n"
        + "\n".join(row(one) for one in found)
        + f"\n\n{environment_lines(where)}\n"
    )
    measured = {"bars": bars, "outages": [asdict(one) for one in found], "surroundings": where}
    write(asked.results, "outage", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
