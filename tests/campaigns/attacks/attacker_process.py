"""Process of the attackers: it runs all attacks at the same time.

    python -m tests.campaigns.attacks.attacker_process < target.json

The first line of standard input describes the server, the second lists the attacks; the end of the input stops them.
The report, one line of JSON with the outcome of each attack, goes to standard output.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

import uvloop

from tests.campaigns.attacks import authenticated, unauthenticated  # noqa: F401  # they fill the table
from tests.campaigns.attacks.attack import ATTACKS, Outcome
from tests.campaigns.attacks.target_server import TargetServer


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    target = TargetServer.from_json(sys.stdin.readline())
    chosen = json.loads(sys.stdin.readline())
    stop_requested = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if sys.stdin.readline() else stop_requested.set())
    outcomes = {name: Outcome(name) for name in chosen}
    tasks = [asyncio.create_task(ATTACKS[name].run(target, outcomes[name])) for name in chosen]
    stopping = asyncio.create_task(stop_requested.wait())
    await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for name, result in zip(chosen, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if not isinstance(result, asyncio.CancelledError):
            outcomes[name].add_problem(f"the attack itself failed: {result!r}")
    loop.remove_reader(sys.stdin)
    sys.stdout.write(json.dumps([outcome.as_dict() for outcome in outcomes.values()]) + "\n")


if __name__ == "__main__":
    uvloop.run(main())
