"""Campaign: attack one server for some time while an honest client uses it.

Owns: the server and its entities, the processes of the client and of the attackers, the bounds that must hold, and the
report.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.support.server import MIB, ProcessStats
from tests.campaigns.attacks import authenticated, unauthenticated  # noqa: F401  # they fill the table
from tests.campaigns.attacks.attack import ATTACKS
from tests.campaigns.attacks.target_server import TargetServer
from tests.support.server_process import ServerProcess
from twinbus.client.sync import BrokeredMessage, MessagingFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).parents[3]
MAX_P99_MS: Final = {"send": 100.0, "complete": 100.0, "connect and send": 300.0}
"""Bounds of the honest client's waits; a new connection needs about ten round trips."""
MAX_RESIDENT_MIB: Final = 600
END_TIMEOUT_S: Final = 120.0
POLL_INTERVAL_S: Final = 0.5
PROGRESS_INTERVAL_S: Final = 30.0
BACKLOG_MESSAGES: Final = 40
BACKLOG_MESSAGE_BYTES: Final = 200_000
OTHER_KEYS: Final = 300
"""Queues with their own keys: the time of a failed login must not grow with their number."""
_CONFIG: Final = """
name = "contoso"
{keys}
[[queues]]
name = "orders"
max_delivery_count = 2000
[[queues]]
name = "shelf"
[[queues]]
name = "baskets"
requires_session = true
[[topics]]
name = "news"
[[topics.subscriptions]]
name = "all"
"""
_KEY_CONFIG: Final = '[[keys]]\nname = "{name}"\nrights = ["{right}"]\nsecret_env = "{variable}"\n'


@dataclass
class Report:
    """Measurements, and the bounds that were violated."""

    seconds: float
    resident_mib: float
    honest_client: dict[str, Any]
    outcomes: list[dict[str, Any]]
    problems: list[str] = field(default_factory=list)

    def judge_waits(self) -> None:
        """Compare the honest client's waits with their bounds; call it only on an otherwise idle machine."""
        for operation, limit_ms in MAX_P99_MS.items():
            wait_ms = self.percentile(operation, 0.99)
            if wait_ms >= limit_ms:
                self.problems.append(f"{operation}: the p99 is {wait_ms:.0f} ms, not under {limit_ms:.0f} ms")

    def judge(self) -> None:
        """Compare all measurements except the waits with their bounds."""
        if self.resident_mib >= MAX_RESIDENT_MIB:
            self.problems.append(f"the server's memory grew to {self.resident_mib:.0f} MiB")
        if self.honest_client["lost_count"]:
            self.problems.append(
                f"{self.honest_client['lost_count']} accepted messages were lost: {self.honest_client['lost']}"
            )
        self.problems += [f"the honest client's {error}" for error in self.honest_client["errors"]]
        self.problems += [problem for outcome in self.outcomes for problem in outcome["problems"]]

    def percentile(self, operation: str, share: float) -> float:
        """Return the percentile of an operation's duration, in milliseconds."""
        waits: list[float] = self.honest_client["waits_ms"][operation]
        return waits[min(len(waits) - 1, int(share * len(waits)))]

    def table(self) -> str:
        """Return the measurements as a text table."""
        lines = [f"{'honest client':<24} {'count':>8} {'p50 ms':>8} {'p99 ms':>8} {'longest':>8}"]
        for operation, waits in self.honest_client["waits_ms"].items():
            middle, high = self.percentile(operation, 0.5), self.percentile(operation, 0.99)
            lines.append(f"{operation:<24} {len(waits):>8,} {middle:>8.1f} {high:>8.1f} {waits[-1]:>8.1f}")
        lines += ["", f"{'attack':<24} {'rounds':>8} {'dropped':>8}  what happened"]
        for outcome in self.outcomes:
            counts = ", ".join(f"{what} {count:,}" for what, count in sorted(outcome["counts"].items()))
            lines.append(f"{outcome['name']:<24} {outcome['rounds']:>8,} {outcome['refusals']:>8,}  {counts}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return the report as one sentence."""
        honest = self.honest_client
        return (
            f"{self.seconds:.0f} s, {len(self.outcomes)} attacks: {honest['accepted']:,} messages accepted, "
            f"{honest['lost_count']} lost, {honest['error_count']} errors; memory {self.resident_mib:.0f} MiB at most; "
            f"{len(self.problems)} problems"
        )


def run_campaign(
    folder: Path,
    seconds: float,
    on_progress: Callable[[str], None],
    only: Sequence[str] = (),
    other_keys: int = OTHER_KEYS,
) -> Report:
    """Run the attacks (default: all) for some seconds, on a namespace with `other_keys` further keys."""
    listen_key, send_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    keys = _KEY_CONFIG.format(name="listener", right="Listen", variable="ATTACKS_LISTEN_KEY")
    keys += _KEY_CONFIG.format(name="sender", right="Send", variable="ATTACKS_SEND_KEY")
    config = folder / "attacked.toml"
    config.write_text(_CONFIG.format(keys=keys))
    environment = {**os.environ, "ATTACKS_LISTEN_KEY": listen_key, "ATTACKS_SEND_KEY": send_key}
    options = (f"--config={config}", "--emulator-key", "--log-level=info")
    server = ServerProcess(folder, options=options, name=None, environment=environment)
    server.start()
    try:
        target = TargetServer(
            host=server.host,
            amqp_port=server.amqp_port,
            amqps_port=server.amqps_port,
            http_port=server.http_port,
            https_port=server.https_port,
            root_name=server.key_name,
            root_key=server.key,
            listen_name="listener",
            listen_key=listen_key,
            send_name="sender",
            send_key=send_key,
        )
        _create_entities(server, target, other_keys)
        report = _attack(server, target, seconds, on_progress, tuple(only) or tuple(ATTACKS))
        server.stop()
        report.problems += _log_problems(server)
        report.judge()
        return report
    finally:
        server.kill()


def _log_problems(server: ServerProcess) -> list[str]:
    """Return the exceptions in the server's log."""
    faults = re.findall(r"Traceback .*?\n(?:.*\n)*?(\w[\w.]*(?:Error|Exception)\b.*)", server.log)
    return [f"logged {count} times: {fault}" for fault, count in Counter(faults).most_common(5)]


def _create_entities(server: ServerProcess, target: TargetServer, other_keys: int) -> None:
    """Create what the attackers need: large messages, and many keys."""
    with MessagingFactory.from_connection_string(target.connection_string) as factory:
        queue = factory.create_queue_client(target.backlog_queue)
        for _ in range(BACKLOG_MESSAGES):
            queue.send(BrokeredMessage(bytes(BACKLOG_MESSAGE_BYTES)))
    for number in range(other_keys):
        server.create_queue_with_key(f"stall-{number}", f"key-{number}")


def _attack(
    server: ServerProcess,
    target: TargetServer,
    seconds: float,
    on_progress: Callable[[str], None],
    chosen: Sequence[str],
) -> Report:
    began_s = time.monotonic()
    peak_bytes = 0
    with (
        _start_program("tests.campaigns.attacks.honest_client", target) as honest,
        _start_program("tests.campaigns.attacks.attacker_process", target) as attackers,
    ):
        assert attackers.stdin is not None
        attackers.stdin.write(json.dumps(list(chosen)) + "\n")
        attackers.stdin.flush()
        reported_s = began_s
        while time.monotonic() < began_s + seconds:
            time.sleep(POLL_INTERVAL_S)
            peak_bytes = max(peak_bytes, ProcessStats(server.pid).peak_resident_bytes)
            if time.monotonic() > reported_s + PROGRESS_INTERVAL_S:
                reported_s = time.monotonic()
                on_progress(
                    f"{reported_s - began_s:.0f} s: server: {ProcessStats(server.pid).resident_bytes / MIB:.0f} MiB"
                )
            for program in (honest, attackers):
                if program.poll() is not None:
                    raise RuntimeError(f"{program.args!r} ended with {program.returncode}")
        outcomes = json.loads(_program_output(attackers))
        record = json.loads(_program_output(honest))
        peak_bytes = max(peak_bytes, ProcessStats(server.pid).peak_resident_bytes)
    return Report(time.monotonic() - began_s, peak_bytes / MIB, record, outcomes)


def _start_program(module: str, target: TargetServer) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert program.stdin is not None
    program.stdin.write(target.as_json() + "\n")
    program.stdin.flush()
    return program


def _program_output(program: subprocess.Popen[str]) -> str:
    """Stop a program by closing its input, and return its report."""
    try:
        report, _ = program.communicate(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    if program.returncode:
        raise RuntimeError(f"{program.args!r} ended with {program.returncode}")
    return report
